// .npy files: a header and the elements of a column.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/column.h"
#include "server/data/npy_header.h"
#include "server/data/output/growing_file.h"
#include "server/data/output/row_encoder.h"
#include "server/data/tensor_conversion.h"
#include "server/storage/files.h"
#include "server/storage/names.h"

namespace braid {
namespace {

constexpr absl::string_view kNpySuffix = ".npy";

class NpyEncoder final : public RowEncoder {
 public:
  struct ColumnFile {
    RowType row;
    std::unique_ptr<GrowingFile> file;
  };

  NpyEncoder(std::shared_ptr<arrow::Schema> schema, std::vector<ColumnFile> columns, int64_t rows)
      : schema_(std::move(schema)), columns_(std::move(columns)), rows_(rows) {}

  absl::Status Write(const arrow::RecordBatch& batch) override {
    for (int c = 0; c < batch.num_columns(); ++c) {
      BRAID_ASSIGN_OR_RETURN(const HostTensor tensor,
                             ToTensor(*schema_->field(c), batch.column(c), rows_));
      BRAID_RETURN_IF_ERROR(columns_[static_cast<size_t>(c)].file->Write(
          absl::string_view(static_cast<const char*>(tensor.data), tensor.bytes)));
    }
    rows_ += batch.num_rows();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredFile>> FinishPart() override {
    std::vector<StoredFile> files;
    for (const ColumnFile& column : columns_) {
      BRAID_ASSIGN_OR_RETURN(StoredFile file, column.file->FinishPart());
      files.push_back(std::move(file));
    }
    return files;
  }

  absl::Status Finish(const std::vector<OutputPart>&) override {
    for (const ColumnFile& column : columns_) {
      std::vector<int64_t> shape = column.row.shape;
      shape.insert(shape.begin(), rows_);
      BRAID_ASSIGN_OR_RETURN(const std::string header, FormatNpyHeader(column.row.type, shape));
      BRAID_RETURN_IF_ERROR(column.file->WritePreamble(header));
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<arrow::Schema> schema_;
  const std::vector<ColumnFile> columns_;
  int64_t rows_;  // written so far
};

}  // namespace

absl::Status CheckNpyColumns(int count, bool one_file) {
  if (one_file && count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("an .npy file has one column, not ", count,
                     " (expected a path that ends with '/', for one .npy file per column)"));
  }
  return absl::OkStatus();
}

absl::Status CheckNpyColumn(const arrow::Field& field, bool one_file) {
  const Column column = ColumnOf(field);
  if (!column.row.has_value() || !RowBytes(*column.row).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", column.name, "' has type ", column.arrow_type,
                     " (expected numbers, booleans or fixed-size lists for .npy)"));
  }
  if (!one_file && !IsFolderName(absl::StrCat(column.name, kNpySuffix))) {
    return absl::InvalidArgumentError(absl::StrCat("column '", Excerpt(column.name),
                                                   "' (expected a name that is valid for a file)"));
  }
  // Rejects what NumPy lacks before anything is computed.
  return FormatNpyHeader(column.row->type, column.row->shape).status();
}

absl::StatusOr<std::unique_ptr<RowEncoder>> OpenNpyEncoder(const std::string& directory,
                                                           std::shared_ptr<arrow::Schema> schema,
                                                           bool one_file,
                                                           const std::vector<OutputPart>& parts) {
  const std::string data = absl::StrCat(directory, "/data");
  BRAID_RETURN_IF_ERROR(CheckNpyColumns(schema->num_fields(), one_file));
  if (!one_file) {
    BRAID_RETURN_IF_ERROR(MakeDirectories(data));
  }
  std::vector<NpyEncoder::ColumnFile> columns;
  for (int c = 0; c < schema->num_fields(); ++c) {
    const arrow::Field& field = *schema->field(c);
    NpyEncoder::ColumnFile column;
    BRAID_RETURN_IF_ERROR(CheckNpyColumn(field, one_file));
    column.row = *ColumnOf(field).row;
    BRAID_ASSIGN_OR_RETURN(
        column.file,
        GrowingFile::Open(one_file ? data : absl::StrCat(data, "/", field.name(), kNpySuffix),
                          kNpyHeaderBytes, PartsOfFile(parts, static_cast<size_t>(c))));
    columns.push_back(std::move(column));
  }
  int64_t rows = 0;
  for (const OutputPart& part : parts) {
    rows += part.rows;
  }
  return std::make_unique<NpyEncoder>(std::move(schema), std::move(columns), rows);
}

}  // namespace braid
