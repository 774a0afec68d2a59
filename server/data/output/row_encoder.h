// Encoders of output formats, for DataWriter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "arrow/type_fwd.h"
#include "server/storage/manifest.h"

namespace braid {

// Rows that were written together.
struct OutputPart {
  int64_t rows = 0;
  // Bytes that each of the encoder's files grew by.
  std::vector<StoredFile> files;
};

// Writes rows into files of a directory. Its file or directory "data" becomes the output.
// Thread-compatible.
class RowEncoder {
 public:
  virtual ~RowEncoder() = default;

  virtual absl::Status Write(const arrow::RecordBatch& batch) = 0;
  // Completes the current part, which may be empty. Returns its files.
  virtual absl::StatusOr<std::vector<StoredFile>> FinishPart() = 0;
  // Completes "data". `parts` are all parts of the output.
  virtual absl::Status Finish(const std::vector<OutputPart>& parts) = 0;
};

// Each opens the files in `directory` after the complete `parts`. INVALID_ARGUMENT if the format
// cannot store a column; DATA_LOSS if a part is damaged.
absl::StatusOr<std::unique_ptr<RowEncoder>> OpenParquetEncoder(
    const std::string& directory, std::shared_ptr<arrow::Schema> schema,
    const std::vector<OutputPart>& parts);
absl::StatusOr<std::unique_ptr<RowEncoder>> OpenJsonLinesEncoder(
    const std::string& directory, const arrow::Schema& schema,
    const std::vector<OutputPart>& parts);
// `one_file`: "data" is the file of the only column, not a directory.
absl::StatusOr<std::unique_ptr<RowEncoder>> OpenNpyEncoder(const std::string& directory,
                                                           std::shared_ptr<arrow::Schema> schema,
                                                           bool one_file,
                                                           const std::vector<OutputPart>& parts);

// Return INVALID_ARGUMENT if the format cannot store a column, or so many columns.
absl::Status CheckParquetColumn(const arrow::Field& field);
absl::Status CheckNpyColumn(const arrow::Field& field, bool one_file);
absl::Status CheckNpyColumns(int count, bool one_file);

// Returns what file number `file` has of each part.
std::vector<StoredFile> PartsOfFile(const std::vector<OutputPart>& parts, size_t file);

}  // namespace braid
