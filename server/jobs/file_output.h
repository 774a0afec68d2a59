// Output of an inference job in a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "arrow/type_fwd.h"
#include "server/base/clock.h"
#include "server/data/output/data_writer.h"
#include "server/jobs/inference_job.h"
#include "server/remote/object_store.h"

namespace braid {

// Writes the kept columns and the model's outputs as columns of a Parquet, .npy or JSON lines file
// (data/output/data_writer.h). BF16 outputs become FP32, because the formats lack BF16.
// An output in S3 is written to a local file first. InputRows::kept must be an arrow::RecordBatch.
// Errors name fields of spec.infer.output.
class FileOutput final : public JobOutput {
 public:
  struct Options {
    // Its signature must tell this job from all others.
    DataWriter::Options file;
    // Outputs of the model and the columns that they become. Empty: all, under their own names.
    std::vector<std::pair<std::string, std::string>> outputs = {};
    // A part is completed when its rows take this many bytes in memory, or after this time: that
    // much is computed again after a crash.
    int64_t part_bytes = int64_t{64} << 20;
    absl::Duration part_interval = absl::Seconds(60);
    // Object, or prefix for a directory, that the complete output is uploaded to: "bucket/key". The
    // local file is removed with the parts. Empty: the output stays where it is.
    std::string object = {};
    const ObjectStore* store = nullptr;
  };

  // `clock` outlives the object.
  FileOutput(Options options, const Clock* clock) : options_(std::move(options)), clock_(clock) {}

  absl::StatusOr<int64_t> Open() override;
  absl::StatusOr<int64_t> Write(const InputRows& rows, const InferenceResult& result) override;
  absl::StatusOr<int64_t> FinishPart() override;
  absl::StatusOr<std::string> Close() override;
  absl::StatusOr<std::string> Upload() override;
  void Discard() override;

  // Checks a new job: ALREADY_EXISTS or INVALID_ARGUMENT as Open(); INVALID_ARGUMENT if two columns
  // have the same name or the format cannot store a column. `kept`: columns of the data; `names`:
  // the model's outputs.
  static absl::Status Check(const Options& options,
                            const std::vector<std::shared_ptr<arrow::Field>>& kept,
                            const std::vector<std::string>& names);

 private:
  absl::StatusOr<std::shared_ptr<arrow::Table>> MakeTable(const InputRows& rows,
                                                          const InferenceResult& result) const;
  // Begins the output with the columns of the first rows, or compares them with those before. The
  // first `kept` ones are kept columns.
  absl::Status Begin(const std::shared_ptr<arrow::Schema>& schema, size_t kept);

  static absl::Status CheckObject(const Options& options);
  absl::Status UploadFiles() const;

  const Options options_;
  const Clock* const clock_;

  // Null before the first Write() of a new output.
  std::unique_ptr<DataWriter> writer_;
  int64_t part_bytes_ = 0;                // of the current part
  std::optional<absl::Time> part_began_;  // nullopt: the current part has no rows
};

}  // namespace braid
