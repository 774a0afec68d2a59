#include "server/jobs/dataset_input.h"

#include <algorithm>
#include <optional>

#include "absl/time/clock.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "arrow/util/byte_size.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/data/arrow_status.h"
#include "server/data/read_ahead.h"
#include "server/data/tensor_column.h"
#include "server/data/tensor_conversion.h"

namespace braid {
namespace {

// Small batches are joined until they have this size, which is about that of a large one.
constexpr int64_t kMaxJoinedBytes = int64_t{16} << 20;

// Returns the columns without the metadata of the file's schema, which describes other columns,
// too.
std::shared_ptr<const arrow::RecordBatch> SelectKept(const arrow::RecordBatch& batch,
                                                     const std::vector<std::string>& keep) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> columns;
  for (const std::string& name : keep) {
    const int index = batch.schema()->GetFieldIndex(name);
    fields.push_back(batch.schema()->field(index));
    columns.push_back(batch.column(index));
  }
  return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), batch.num_rows(),
                                  std::move(columns));
}

// Returns the types of the tensors' rows, by the first row. Empty if it cannot be read.
std::vector<RowType> TypesOf(const arrow::RecordBatch& batch,
                             const std::vector<TensorColumn>& tensors) {
  std::vector<RowType> types;
  const std::shared_ptr<arrow::RecordBatch> first = batch.Slice(0, 1);
  for (const TensorColumn& tensor : tensors) {
    const absl::StatusOr<HostTensor> row = ReadTensor(*first, tensor, 0);
    if (!row.ok()) {
      return {};
    }
    types.push_back(RowTypeOf(*row));
  }
  return types;
}

// Cuts and joins the batches of a scan.
class ScanStream final : public RowStream {
 public:
  // `options` outlives the stream.
  ScanStream(std::unique_ptr<RowScan> scan, int64_t first_row, const DatasetInput::Options& options)
      : scan_(std::move(scan)), next_row_(first_row), options_(options) {}

  absl::StatusOr<std::optional<InputRows>> Next(int64_t max_rows) override {
    const absl::Time start = absl::Now();
    const absl::StatusOr<Batch> taken = Take(max_rows);
    if (!taken.ok()) {
      return InField(options_.data.path_field, taken.status());
    }
    const Batch& batch = *taken;
    if (batch == nullptr) {
      return std::nullopt;
    }
    InputRows rows;
    rows.waited = absl::Now() - start;
    rows.first = next_row_;
    rows.count = batch->num_rows();
    for (const TensorColumn& input : options_.data.inputs) {
      absl::StatusOr<HostTensor> tensor = ReadTensor(*batch, input, next_row_);
      if (!tensor.ok()) {
        return InField(options_.data.path_field, tensor.status());
      }
      rows.inputs.push_back(*std::move(tensor));
    }
    if (!options_.keep.empty()) {
      rows.kept = SelectKept(*batch, options_.keep);
    }
    next_row_ += rows.count;
    return rows;
  }

 private:
  using Batch = std::shared_ptr<arrow::RecordBatch>;

  // Returns the next rows: a slice of one batch, or a copy of slices of several small ones. Null at
  // the end.
  absl::StatusOr<Batch> Take(int64_t max_rows) {
    std::vector<Batch> pieces;
    int64_t bytes = 0;
    while (max_rows > 0 && bytes < kMaxJoinedBytes) {
      if (rest_ == nullptr || rest_->num_rows() == 0) {
        BRAID_ASSIGN_OR_RETURN(rest_, scan_.Next());
      }
      if (rest_ == nullptr || (!pieces.empty() && !Join(*pieces.front(), *rest_))) {
        break;
      }
      pieces.push_back(rest_->Slice(0, max_rows));
      rest_ = rest_->Slice(pieces.back()->num_rows());
      max_rows -= pieces.back()->num_rows();
      bytes += arrow::util::ReferencedBufferSize(*pieces.back()).ValueOr(kMaxJoinedBytes);
    }
    if (pieces.size() <= 1) {
      return pieces.empty() ? nullptr : pieces.front();
    }
    return FromArrow(arrow::ConcatenateRecordBatches(pieces), "join rows of", options_.data.path);
  }

  // Returns true if the inputs of both batches have the same shape: their lists may have other
  // lengths.
  bool Join(const arrow::RecordBatch& a, const arrow::RecordBatch& b) const {
    return TypesOf(a, options_.data.inputs) == TypesOf(b, options_.data.inputs);
  }

  ReadAhead scan_;
  int64_t next_row_;
  const DatasetInput::Options& options_;
  Batch rest_;  // of the last batch of the scan
};

}  // namespace

absl::StatusOr<int64_t> DatasetInput::Rows(std::string* identity) {
  BRAID_ASSIGN_OR_RETURN(Dataset dataset, OpenDataset(options_.data, directories_));
  BRAID_RETURN_IF_ERROR(CheckSameData(options_.data, *dataset.source, identity));
  BRAID_RETURN_IF_ERROR(CheckKept(dataset.source->columns(), options_.keep));
  source_ = std::move(dataset.source);
  const absl::StatusOr<int64_t> rows = source_->Rows();
  if (!rows.ok()) {
    return InField(options_.data.path_field, rows.status());
  }
  if (*rows == 0) {
    return InvalidField(options_.data.path_field, "no rows (expected at least one)");
  }
  return *rows;
}

absl::StatusOr<std::unique_ptr<RowStream>> DatasetInput::Open(int64_t first_row) {
  std::vector<std::string> columns = ColumnsToRead(options_.data.inputs);
  for (const std::string& name : options_.keep) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) {
      columns.push_back(name);
    }
  }
  absl::StatusOr<std::unique_ptr<RowScan>> scan =
      source_->Scan({.columns = std::move(columns), .first_row = first_row});
  if (!scan.ok()) {
    return InField(options_.data.path_field, scan.status());
  }
  return std::make_unique<ScanStream>(*std::move(scan), first_row, options_);
}

absl::Status DatasetInput::CheckKept(const std::vector<Column>& columns,
                                     const std::vector<std::string>& keep) {
  return InField("spec.infer.output.keep", ColumnIndices(columns, keep).status());
}

}  // namespace braid
