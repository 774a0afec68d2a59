#include "server/data/tensor_column.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "arrow/array.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "server/base/status.h"
#include "server/data/data_source.h"
#include "server/data/encoded/bytes_column.h"
#include "server/data/encoded/encoded_values.h"
#include "server/data/tensor_conversion.h"

namespace braid {
namespace {

// Rows whose elements are joined at a time, so that they stay in the cache.
constexpr int64_t kJoinedRows = 256;

absl::Status CheckJoined(const Column& column, const Column& first, const TensorColumn& tensor) {
  if (!column.row->shape.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", column.name, "' has rows of ", RowTypeString(*column.row),
                     " (expected a number, because '", tensor.name, "' joins columns)"));
  }
  if (!tensor.type.has_value() && column.row->type != first.row->type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "column '", column.name, "' has datatype ", DataTypeName(column.row->type), " (expected ",
        DataTypeName(first.row->type), ", as column '", first.name, "', or a common datatype)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RowType> DecodedRowType(const Column& column, const TensorColumn& tensor) {
  if (tensor.columns.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("decodes ", tensor.columns.size(), " columns (expected one, with the bytes)"));
  }
  if (tensor.decoder->takes_lists()) {
    return column.lists ? absl::StatusOr<RowType>(*column.row)
                        : absl::InvalidArgumentError(absl::StrCat(
                              "column '", column.name, "' has type ", column.arrow_type,
                              " (expected lists of integers or of floating-point numbers, which "
                              "are padded)"));
  }
  if (!column.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", column.name, "' has type ", column.arrow_type,
                     " (expected bytes or strings, which are decoded)"));
  }
  for (const Decoder::Output& output : tensor.decoder->outputs()) {
    if (output.input.empty()) {
      return output.row;
    }
  }
  return absl::InternalError(absl::StrCat("no decoded tensor for '", tensor.name, "'"));
}

// Copies elements of T to every `stride`-th element of `target`.
template <typename T>
void Scatter(const char* source, int64_t count, size_t stride, char* target) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(target, source, sizeof(T));
    source += sizeof(T);
    target += stride * sizeof(T);
  }
}

void ScatterElements(size_t element_bytes, const char* source, int64_t count, size_t stride,
                     char* target) {
  switch (element_bytes) {
    case 1:
      return Scatter<uint8_t>(source, count, stride, target);
    case 2:
      return Scatter<uint16_t>(source, count, stride, target);
    case 4:
      return Scatter<uint32_t>(source, count, stride, target);
    default:
      return Scatter<uint64_t>(source, count, stride, target);
  }
}

// Joins vectors of the same length and type as the columns of a matrix.
absl::StatusOr<HostTensor> JoinColumns(const std::vector<HostTensor>& vectors) {
  HostTensor joined = vectors.front();
  const int64_t rows = joined.rows();
  const size_t width = vectors.size();
  const size_t element_bytes = DataTypeSize(joined.type);
  joined.shape.push_back(static_cast<int64_t>(width));
  joined.bytes *= width;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(joined.bytes));
  for (int64_t begin = 0; begin < rows; begin += kJoinedRows) {
    const int64_t count = std::min(kJoinedRows, rows - begin);
    for (size_t c = 0; c < width; ++c) {
      const size_t first = static_cast<size_t>(begin) * element_bytes;
      ScatterElements(element_bytes, static_cast<const char*>(vectors[c].data) + first, count,
                      width, memory.get() + first * width + c * element_bytes);
    }
  }
  joined.data = memory.get();
  joined.owner = memory;
  return joined;
}

}  // namespace

absl::StatusOr<RowType> TensorRowType(const std::vector<Column>& columns,
                                      const TensorColumn& tensor) {
  if (tensor.columns.empty()) {
    return absl::InvalidArgumentError("no column (expected at least one)");
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices, ColumnIndices(columns, tensor.columns));
  const Column& first = columns[static_cast<size_t>(indices.front())];
  if (tensor.decoder != nullptr) {
    return DecodedRowType(first, tensor);
  }
  for (const int index : indices) {
    const Column& column = columns[static_cast<size_t>(index)];
    if (!column.row.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", column.name, "' has type ", column.arrow_type,
                       column.bytes ? " (expected numbers, or decode: how bytes become numbers)"
                                    : " (expected numbers, booleans or lists of them)"));
    }
    if (indices.size() > 1) {
      BRAID_RETURN_IF_ERROR(CheckJoined(column, first, tensor));
    }
  }
  RowType row{tensor.TargetType(first.row->type), first.row->shape};
  if (tensor.scale != 1 && !IsFloatingPoint(row.type)) {
    return absl::InvalidArgumentError(absl::StrCat("column '", first.name, "' is scaled as ",
                                                   DataTypeName(row.type),
                                                   " (expected a floating-point datatype)"));
  }
  if (indices.size() > 1) {
    row.shape = {static_cast<int64_t>(indices.size())};
  }
  return row;
}

std::vector<std::string> ColumnsToRead(const std::vector<TensorColumn>& tensors) {
  std::vector<std::string> columns;
  for (const TensorColumn& tensor : tensors) {
    for (const std::string& column : tensor.columns) {
      if (std::find(columns.begin(), columns.end(), column) == columns.end()) {
        columns.push_back(column);
      }
    }
  }
  return columns;
}

absl::StatusOr<HostTensor> ReadTensor(const arrow::RecordBatch& batch, const TensorColumn& tensor,
                                      int64_t first_row) {
  std::vector<HostTensor> read;
  for (const std::string& name : tensor.columns) {
    const int index = batch.schema()->GetFieldIndex(name);
    BRAID_ASSIGN_OR_RETURN(const HostTensor column,
                           ToTensor(*batch.schema()->field(index), batch.column(index), first_row));
    BRAID_ASSIGN_OR_RETURN(
        HostTensor converted,
        ConvertTensor(column, tensor.TargetType(column.type), tensor.scale, first_row));
    read.push_back(std::move(converted));
  }
  HostTensor result = read.front();
  if (read.size() > 1) {
    BRAID_ASSIGN_OR_RETURN(result, JoinColumns(read));
  }
  result.name = tensor.name;
  return result;
}

EncodedColumn ColumnOfBatch(const TensorColumn& tensor,
                            const std::shared_ptr<arrow::RecordBatch>& batch, int64_t first_row) {
  const std::shared_ptr<arrow::Array> values = batch->GetColumnByName(tensor.columns.front());
  const auto value = [values, first_row](int64_t row) {
    return BytesOfRow(*values, row - first_row);
  };
  const std::shared_ptr<const FileReader> files = tensor.files;
  return {tensor.shown_column(), tensor.name, tensor.decoder.get(),
          [value, files](int64_t row, std::string* storage) -> absl::StatusOr<absl::string_view> {
            const std::optional<absl::string_view> bytes = value(row);
            if (!bytes.has_value()) {
              return absl::InvalidArgumentError("null (expected a value)");
            }
            if (files == nullptr) {
              return *bytes;
            }
            BRAID_ASSIGN_OR_RETURN(*storage, files->Read(*bytes));
            return absl::string_view(*storage);
          },
          [value, files](int64_t row) {
            const std::optional<absl::string_view> path = value(row);
            return files == nullptr || !path.has_value() ? "" : InFile(*path);
          }};
}

}  // namespace braid
