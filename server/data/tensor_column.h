// Columns of a table that become a tensor of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "arrow/type_fwd.h"
#include "server/base/host_tensor.h"
#include "server/data/column.h"
#include "server/data/encoded/decode_rows.h"
#include "server/data/encoded/file_reader.h"
#include "server/decode/decoder.h"

namespace braid {

struct TensorColumn {
  // Name of the tensor.
  std::string name;
  // One column, whose rows have the tensor's shape; or several columns of numbers, which are the
  // elements of a vector, in this order.
  std::vector<std::string> columns;
  // Converts to this type; nullopt keeps the column's.
  std::optional<DataType> type = std::nullopt;
  // Factor, for floating-point types, as x.to(type) * scale in PyTorch.
  double scale = 1;
  // Turns the column's bytes into the tensor, and possibly others; null: the column has the
  // numbers.
  std::shared_ptr<const Decoder> decoder = nullptr;
  // Reads the files that the column names; null: the column has the bytes.
  std::shared_ptr<const FileReader> files = nullptr;
  // Column that the user named, if `columns` has the one with the paths of its files; else empty.
  std::string user_column = "";

  // Returns the name of the first column for errors.
  const std::string& shown_column() const {
    return user_column.empty() ? columns.front() : user_column;
  }
  // Returns the type of the tensor for a column of type `from`.
  DataType TargetType(DataType from) const { return type.value_or(from); }
};

// Returns the type of the tensor's rows. INVALID_ARGUMENT if a column is unknown or is not a
// tensor, if several columns are not numbers of one type, or for a scale of a type that is not
// floating point; with a decoder, if there are several columns or the rows are not bytes.
absl::StatusOr<RowType> TensorRowType(const std::vector<Column>& columns,
                                      const TensorColumn& tensor);

// Returns the names of the columns that the tensors need, each once.
std::vector<std::string> ColumnsToRead(const std::vector<TensorColumn>& tensors);

// Returns the rows of a batch as a tensor, converted as `tensor` asks. Shares the batch's memory if
// nothing must be converted. Requires the columns that TensorRowType() accepts. `first_row` and
// errors as in ToTensor() and ConvertTensor().
// Requires a tensor without decoder.
absl::StatusOr<HostTensor> ReadTensor(const arrow::RecordBatch& batch, const TensorColumn& tensor,
                                      int64_t first_row);

// Returns access to the encoded rows of a batch, for DecodeColumns(). Requires a tensor with a
// decoder.
EncodedColumn ColumnOfBatch(const TensorColumn& tensor,
                            const std::shared_ptr<arrow::RecordBatch>& batch, int64_t first_row);

}  // namespace braid
