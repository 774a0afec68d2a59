// Dataset of a job.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/data/column.h"
#include "server/data/data_source.h"
#include "server/data/open_data_source.h"
#include "server/data/tensor_column.h"
#include "server/decode/decode_spec.h"
#include "server/jobs/job.h"
#include "server/models/model_config.h"
#include "server/remote/object_copies.h"

namespace braid {

// How the bytes of a column become a tensor, as the job's specification says.
struct ColumnDecode {
  // nullopt: as the model's configuration says.
  std::optional<DecodeSpec> spec = std::nullopt;
  // In evaluations. nullopt: as the model's configuration says, or else `spec`.
  std::optional<DecodeSpec> evaluation = std::nullopt;
  // The values are paths of files with the bytes.
  bool paths = false;
};

struct DatasetOptions {
  std::string path;
  // Without decoders, which OpenDataset() adds.
  std::vector<TensorColumn> inputs;
  std::vector<TensorColumn> targets;
  // Field of the job's specification that `path` comes from, for errors: "spec.train.data.path".
  std::string path_field;
  // Field with the lists "inputs" and "targets": "spec.train.data". Empty: the columns were chosen
  // for another dataset, so errors about them name `path_field`.
  std::string columns_field;

  // Field with the lists that `input_decode` and `target_decode` come from. Empty: columns_field.
  std::string decode_field = {};
  // One for each of `inputs` and `targets`, or none.
  std::vector<ColumnDecode> input_decode = {};
  std::vector<ColumnDecode> target_decode = {};
  // The rows are used without random transforms.
  bool evaluation = false;
  // Leaves out rows that cannot be decoded. False: they are errors.
  bool skip_unreadable = false;
  // Returns the configuration of the model, whose inputs may have decoders; nullptr: none has.
  std::function<absl::StatusOr<ModelConfig>()> model = nullptr;
  // Directories where paths of tokenizers start, before the dataset's own.
  std::vector<std::string> decode_directories = {};
};

struct Dataset {
  std::unique_ptr<DataSource> source;
  // DatasetOptions::inputs and targets, with their decoders.
  std::vector<TensorColumn> input_columns;
  std::vector<TensorColumn> target_columns;
  // Types of their rows.
  std::vector<RowType> inputs;
  std::vector<RowType> targets;
  // Text that differs if the model's decoding differs. Empty if it is not used.
  std::string decoding;
};

// Sets `identity`, what a job remembers of its data, if it is empty. Otherwise FAILED_PRECONDITION
// that says whether the source is another or its files have changed, or the model's decoding.
absl::Status CheckSameData(const DatasetOptions& options, const Dataset& dataset,
                           std::string* identity);

// FAILED_PRECONDITION naming the path if DataSource::Identity() of the data is no longer
// `identity`, or the data is gone. Blocks on the disk.
absl::Status CheckSameSource(const DatasetOptions& options, const DataDirectories& directories,
                             const std::string& identity);

// Opens the data, makes the decoders and checks that the columns are tensors. Blocks on the disk.
// Errors start with the field: those of OpenDataSource(), which calls `progress`, MakeDecoder() and
// TensorRowType(); INVALID_ARGUMENT if a column of bytes has no decoder or, for an evaluation, a
// random one only, or if a tokenizer in the dataset's folder is a link that leads out of the roots.
absl::StatusOr<Dataset> OpenDataset(const DatasetOptions& options,
                                    const DataDirectories& directories,
                                    const CopyProgress& progress = nullptr);

// Returns a function that logs how far data in S3 is copied, and ends the copying when the job must
// stop. `context` outlives it.
CopyProgress LogCopying(JobContext* context);

// Returns CANCELLED if the client has stopped waiting for the result of a check. Does not block.
using CancelCheck = std::function<absl::Status()>;

// Decodes the first row, so that wrong files are found before a job runs. Errors start with the
// field. OK if no column is decoded. Calls `check_cancelled` before each column, and returns its
// error.
absl::Status CheckFirstRow(const DatasetOptions& options, const Dataset& dataset,
                           const CancelCheck& check_cancelled);

// RESOURCE_EXHAUSTED naming `field` if a batch of `batch_size` decoded rows, or of all rows if
// there are fewer, takes more than half of `memory`, in bytes: another batch is decoded ahead. Rows
// of unknown size, such as texts of any length, are not counted; DecodeOptions::max_bytes limits
// them when a batch is made.
absl::Status CheckBatchMemory(const Dataset& dataset, int64_t batch_size, int64_t memory,
                              absl::string_view field);

}  // namespace braid
