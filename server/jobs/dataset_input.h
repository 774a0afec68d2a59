// Dataset of an inference job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/data/open_data_source.h"
#include "server/jobs/dataset.h"
#include "server/jobs/inference_job.h"

namespace braid {

// Streams the rows in their order, a few batches of about 16 MiB ahead. Joins small batches, for
// example of many files, unless their lists have different lengths. InputRows::kept is an
// arrow::RecordBatch. Rows with encoded bytes are decoded by a thread per core, three requests of
// at most 64 MiB ahead, until the job must stop: the stream's error is then CANCELLED. Rows that
// are padded, such as texts, are sorted by their bytes in windows of at most 4 MiB of these bytes
// (or of one request), and have several requests.
class DatasetInput final : public InputSource {
 public:
  struct Options {
    DatasetOptions data;
    // Columns that are copied to the output.
    std::vector<std::string> keep = {};
  };

  DatasetInput(Options options, DataDirectories directories)
      : options_(std::move(options)), directories_(std::move(directories)) {}

  // INVALID_ARGUMENT for the field of data that cannot be used, and for data without rows. Reads a
  // CSV file to its end.
  absl::StatusOr<int64_t> Rows(JobContext* context, std::string* identity) override;
  absl::StatusOr<std::unique_ptr<RowStream>> Open(int64_t first_row) override;
  absl::Status CheckUnchanged() override;

  // Checks that the columns exist. The error names spec.infer.output.keep.
  static absl::Status CheckKept(const std::vector<Column>& columns,
                                const std::vector<std::string>& keep);

 private:
  const Options options_;
  const DataDirectories directories_;
  // Set by Rows().
  const JobContext* context_ = nullptr;
  std::unique_ptr<DataSource> source_;
  std::string identity_;              // of the source; empty if it keeps its files open
  std::vector<TensorColumn> inputs_;  // with their decoders
  size_t max_decoded_bytes_ = 0;      // of a request: half of the free memory
};

}  // namespace braid
