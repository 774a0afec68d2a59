#include "server/data/array_source.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "server/base/status.h"
#include "server/data/tensor_conversion.h"

namespace braid {
namespace {

class ArrayScan final : public RowScan {
 public:
  struct Array {
    HostTensor tensor;
    std::shared_ptr<const MappedRange> range;
  };

  ArrayScan(std::shared_ptr<arrow::Schema> schema, std::vector<Array> arrays, int64_t rows,
            int64_t first_row, int64_t batch_rows)
      : schema_(std::move(schema)),
        arrays_(std::move(arrays)),
        rows_(rows),
        batch_rows_(batch_rows),
        next_(std::min(first_row, rows)) {}

  absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() override {
    // Checks what the caller has read from the previous batch, too.
    for (const Array& array : arrays_) {
      BRAID_RETURN_IF_ERROR(array.range->Check());
    }
    if (next_ == rows_) {
      return nullptr;
    }
    const int64_t begin = next_;
    next_ = std::min(rows_, begin + batch_rows_);
    std::vector<std::shared_ptr<arrow::Array>> columns;
    for (const Array& array : arrays_) {
      BRAID_ASSIGN_OR_RETURN(std::shared_ptr<arrow::Array> column,
                             ToArray(SliceRows(array.tensor, begin, next_)));
      columns.push_back(std::move(column));
    }
    return arrow::RecordBatch::Make(schema_, next_ - begin, std::move(columns));
  }

 private:
  const std::shared_ptr<arrow::Schema> schema_;
  const std::vector<Array> arrays_;
  const int64_t rows_;
  const int64_t batch_rows_;
  int64_t next_;
};

class ArraySource final : public DataSource {
 public:
  ArraySource(std::vector<StoredArray> arrays, std::vector<Column> columns,
              std::shared_ptr<arrow::Schema> schema, std::string identity)
      : arrays_(std::move(arrays)),
        columns_(std::move(columns)),
        schema_(std::move(schema)),
        identity_(std::move(identity)) {}

  absl::string_view format() const override { return "arrays"; }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::shared_ptr<arrow::Schema>& schema() const override { return schema_; }
  std::string Identity() const override { return identity_; }
  absl::StatusOr<int64_t> Rows() override { return arrays_.front().shape.front(); }
  std::optional<int64_t> KnownRows() const override { return arrays_.front().shape.front(); }
  const std::vector<StoredArray>* arrays() const override { return &arrays_; }

  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices,
                           ColumnIndices(columns_, options.columns));
    std::vector<std::shared_ptr<arrow::Field>> fields;
    std::vector<ArrayScan::Array> arrays;
    for (const int index : indices) {
      fields.push_back(schema_->field(index));
      ArrayScan::Array array;
      BRAID_ASSIGN_OR_RETURN(array.tensor,
                             MapTensor(arrays_[static_cast<size_t>(index)], &array.range));
      arrays.push_back(std::move(array));
    }
    return std::make_unique<ArrayScan>(arrow::schema(std::move(fields)), std::move(arrays),
                                       arrays_.front().shape.front(), options.first_row,
                                       BatchRows(options, columns_, indices));
  }

 private:
  const std::vector<StoredArray> arrays_;
  const std::vector<Column> columns_;
  const std::shared_ptr<arrow::Schema> schema_;
  const std::string identity_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenArraySource(
    const std::vector<std::shared_ptr<const DataFile>>& files,
    const std::string& scratch_directory) {
  std::vector<StoredArray> arrays;
  std::string identity;
  for (const std::shared_ptr<const DataFile>& file : files) {
    BRAID_ASSIGN_OR_RETURN(std::vector<StoredArray> more, ReadArrays(file, scratch_directory));
    std::move(more.begin(), more.end(), std::back_inserter(arrays));
    identity += file->Identity();
  }
  if (arrays.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", files.front()->path(), "' has no arrays (expected at least one)"));
  }
  std::vector<std::shared_ptr<arrow::Field>> fields;
  for (const StoredArray& array : arrays) {
    if (array.shape.front() != arrays.front().shape.front()) {
      return absl::InvalidArgumentError(
          absl::StrCat("array '", array.name, "' has ", array.shape.front(), " rows (expected ",
                       arrays.front().shape.front(), ", as array '", arrays.front().name, "')"));
    }
    const RowType row{array.type, {array.shape.begin() + 1, array.shape.end()}};
    BRAID_ASSIGN_OR_RETURN(std::shared_ptr<arrow::Field> field, FieldOf(array.name, row));
    fields.push_back(std::move(field));
  }
  std::shared_ptr<arrow::Schema> schema = arrow::schema(std::move(fields));
  BRAID_ASSIGN_OR_RETURN(std::vector<Column> columns, ColumnsOf(*schema));
  return std::make_unique<ArraySource>(std::move(arrays), std::move(columns), std::move(schema),
                                       std::move(identity));
}

}  // namespace braid
