#include "server/data/tensor_conversion.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "arrow/array.h"
#include "arrow/buffer.h"
#include "arrow/extension_type.h"
#include "arrow/type.h"
#include "arrow/util/bit_util.h"
#include "server/base/status.h"
#include "server/data/convert_elements.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 64;

// Keeps the tensor's owner alive.
class TensorBuffer final : public arrow::Buffer {
 public:
  explicit TensorBuffer(const HostTensor& tensor)
      : Buffer(static_cast<const uint8_t*>(tensor.data), static_cast<int64_t>(tensor.bytes)),
        owner_(tensor.owner) {}

 private:
  const std::shared_ptr<const void> owner_;
};

absl::Status InRow(absl::string_view column, int64_t row, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("column '", column, "', row ", row, ": ", what));
}

// Elements of lists, from the outermost one inwards.
struct Elements {
  std::shared_ptr<arrow::Array> array;
  int64_t per_row = 1;
  std::vector<int64_t> shape;  // of a row
};

int64_t FirstNull(const arrow::Array& array) {
  int64_t row = 0;
  while (array.IsValid(row)) {
    ++row;
  }
  return row;
}

// Refuses nulls. `array` holds `per_row` values of each row.
absl::Status CheckNoNulls(absl::string_view column, const arrow::Array& array, int64_t per_row,
                          int64_t first_row) {
  if (array.null_count() == 0) {
    return absl::OkStatus();
  }
  return InRow(column, first_row + FirstNull(array) / per_row, "null (expected a value)");
}

template <typename List>
absl::Status OpenList(absl::string_view column, const List& list, int64_t first_row,
                      Elements* elements) {
  const int64_t length = list.length() > 0 ? list.value_length(0) : 0;
  for (int64_t row = 1; row < list.length(); ++row) {
    if (list.value_length(row) != length) {
      return InRow(column, first_row + row,
                   absl::StrCat("list of ", list.value_length(row), " values (expected ", length,
                                ", as in row ", first_row, ")"));
    }
  }
  elements->shape.push_back(length);
  elements->per_row = length;
  const int64_t begin = list.length() > 0 ? list.value_offset(0) : 0;
  elements->array = list.values()->Slice(begin, list.length() * length);
  return absl::OkStatus();
}

absl::StatusOr<Elements> OpenLists(const arrow::Field& field,
                                   const std::shared_ptr<arrow::Array>& array, int64_t first_row) {
  Elements elements{array, 1, {}};
  if (array->type_id() == arrow::Type::EXTENSION) {
    elements.array = static_cast<const arrow::ExtensionArray&>(*array).storage();
  }
  while (true) {
    BRAID_RETURN_IF_ERROR(CheckNoNulls(field.name(), *elements.array,
                                       std::max<int64_t>(elements.per_row, 1), first_row));
    switch (elements.array->type_id()) {
      case arrow::Type::LIST:
        BRAID_RETURN_IF_ERROR(OpenList(field.name(),
                                       static_cast<const arrow::ListArray&>(*elements.array),
                                       first_row, &elements));
        break;
      case arrow::Type::LARGE_LIST:
        BRAID_RETURN_IF_ERROR(OpenList(field.name(),
                                       static_cast<const arrow::LargeListArray&>(*elements.array),
                                       first_row, &elements));
        break;
      case arrow::Type::FIXED_SIZE_LIST: {
        const auto& list = static_cast<const arrow::FixedSizeListArray&>(*elements.array);
        const int64_t length = list.list_type()->list_size();
        elements.shape.push_back(length);
        elements.per_row *= length;
        elements.array = list.values()->Slice(list.value_offset(0), list.length() * length);
        break;
      }
      default:
        return elements;
    }
  }
}

std::vector<int64_t> WithRows(int64_t rows, const std::vector<int64_t>& row_shape) {
  std::vector<int64_t> shape = {rows};
  shape.insert(shape.end(), row_shape.begin(), row_shape.end());
  return shape;
}

absl::StatusOr<HostTensor> UnpackBits(HostTensor tensor, const arrow::Array& array) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(tensor.bytes));
  const auto& bits = static_cast<const arrow::BooleanArray&>(array);
  for (int64_t i = 0; i < bits.length(); ++i) {
    memory.get()[i] = bits.Value(i) ? 1 : 0;
  }
  tensor.data = memory.get();
  tensor.owner = memory;
  return tensor;
}

absl::StatusOr<std::shared_ptr<arrow::Buffer>> PackBits(const HostTensor& tensor) {
  const auto bytes =
      static_cast<size_t>(arrow::bit_util::BytesForBits(static_cast<int64_t>(tensor.bytes)));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(bytes));
  std::memset(memory.get(), 0, bytes);
  const char* const values = static_cast<const char*>(tensor.data);
  for (size_t i = 0; i < tensor.bytes; ++i) {
    arrow::bit_util::SetBitTo(reinterpret_cast<uint8_t*>(memory.get()), static_cast<int64_t>(i),
                              values[i] != 0);
  }
  HostTensor packed;
  packed.data = memory.get();
  packed.bytes = bytes;
  packed.owner = memory;
  return std::make_shared<TensorBuffer>(packed);
}

absl::StatusOr<std::shared_ptr<arrow::Buffer>> BufferOf(const HostTensor& tensor) {
  if (tensor.type == DataType::kBool) {
    return PackBits(tensor);
  }
  if (reinterpret_cast<uintptr_t>(tensor.data) % DataTypeSize(tensor.type) == 0) {
    return std::make_shared<TensorBuffer>(tensor);
  }
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(tensor.bytes));
  std::memcpy(memory.get(), tensor.data, tensor.bytes);
  HostTensor copy = tensor;
  copy.data = memory.get();
  copy.owner = memory;
  return std::make_shared<TensorBuffer>(copy);
}

// Text of one element for messages.
std::string ElementText(DataType type, const void* at) {
  if (type == DataType::kUint64 || type == DataType::kInt64) {
    uint64_t bits = 0;
    std::memcpy(&bits, at, sizeof(bits));
    return type == DataType::kUint64 ? absl::StrCat(bits)
                                     : absl::StrCat(static_cast<int64_t>(bits));
  }
  double value = 0;
  ConvertElements(type, at, DataType::kFp64, 1, 1, &value);
  return absl::StrCat(value);
}

}  // namespace

absl::StatusOr<std::shared_ptr<char>> AllocateHost(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)),
                               &std::free);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of host memory: cannot allocate ", bytes, " bytes"));
  }
  return memory;
}

absl::StatusOr<HostTensor> ToTensor(const arrow::Field& field,
                                    const std::shared_ptr<arrow::Array>& array, int64_t first_row) {
  const Column column = ColumnOf(field);
  if (!column.row.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", column.name, "' has type ", column.arrow_type,
                     " (expected numbers, booleans or lists of them)"));
  }
  BRAID_ASSIGN_OR_RETURN(const Elements elements, OpenLists(field, array, first_row));
  HostTensor tensor;
  tensor.name = column.name;
  tensor.type = column.row->type;
  // A fixed-shape tensor has one flat list but may have more dimensions.
  const bool extension = array->type_id() == arrow::Type::EXTENSION;
  tensor.shape = WithRows(array->length(), extension ? column.row->shape : elements.shape);
  tensor.bytes = static_cast<size_t>(elements.array->length()) * DataTypeSize(tensor.type);
  if (tensor.type == DataType::kBool) {
    return UnpackBits(std::move(tensor), *elements.array);
  }
  const std::shared_ptr<arrow::Buffer>& values = elements.array->data()->buffers[1];
  if (tensor.bytes > 0) {
    tensor.data =
        values->data() + static_cast<size_t>(elements.array->offset()) * DataTypeSize(tensor.type);
  }
  tensor.owner = values;
  return tensor;
}

absl::StatusOr<std::shared_ptr<arrow::Array>> ToArray(const HostTensor& tensor) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Field> field,
                         FieldOf(tensor.name, RowTypeOf(tensor)));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Buffer> values, BufferOf(tensor));
  // Builds the nested lists from the outermost one; each has one child.
  int64_t length = tensor.rows();
  const std::shared_ptr<arrow::ArrayData> root =
      arrow::ArrayData::Make(field->type(), length, {nullptr}, /*null_count=*/0);
  arrow::ArrayData* level = root.get();
  while (level->type->id() == arrow::Type::FIXED_SIZE_LIST) {
    const auto& list = static_cast<const arrow::FixedSizeListType&>(*level->type);
    length *= list.list_size();
    level->child_data = {
        arrow::ArrayData::Make(list.value_type(), length, {nullptr}, /*null_count=*/0)};
    level = level->child_data[0].get();
  }
  level->buffers.push_back(values);
  return arrow::MakeArray(root);
}

RowType RowTypeOf(const HostTensor& tensor) {
  return {tensor.type, {tensor.shape.begin() + 1, tensor.shape.end()}};
}

HostTensor SliceRows(const HostTensor& tensor, int64_t begin, int64_t end) {
  HostTensor slice = tensor;
  const size_t row_bytes =
      tensor.rows() > 0 ? tensor.bytes / static_cast<size_t>(tensor.rows()) : 0;
  slice.shape.front() = end - begin;
  slice.data = static_cast<const char*>(tensor.data) + static_cast<size_t>(begin) * row_bytes;
  slice.bytes = static_cast<size_t>(end - begin) * row_bytes;
  return slice;
}

absl::StatusOr<HostTensor> ConvertTensor(const HostTensor& tensor, DataType type, double scale,
                                         int64_t first_row) {
  if (tensor.type == type && scale == 1) {
    return tensor;
  }
  const size_t count = tensor.bytes / DataTypeSize(tensor.type);
  HostTensor converted = tensor;
  converted.type = type;
  converted.bytes = count * DataTypeSize(type);
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(converted.bytes));
  const auto bad = ConvertElements(tensor.type, tensor.data, type, scale, count, memory.get());
  if (bad.has_value()) {
    const RowType row = RowTypeOf(tensor);
    const size_t row_number = *bad * DataTypeSize(tensor.type) / *RowBytes(row);
    return InvalidRowValue(tensor.name, row,
                           static_cast<const char*>(tensor.data) + row_number * *RowBytes(row),
                           first_row + static_cast<int64_t>(row_number), type);
  }
  converted.data = memory.get();
  converted.owner = memory;
  return converted;
}

absl::Status InvalidRowValue(absl::string_view column, const RowType& stored, const void* row,
                             int64_t row_number, DataType type) {
  const size_t size = DataTypeSize(stored.type);
  const size_t count = *RowBytes(stored) / size;
  std::string scratch(count * DataTypeSize(type), '\0');
  const size_t bad = ConvertElements(stored.type, row, type, 1, count, scratch.data()).value_or(0);
  const char* const at = static_cast<const char*>(row) + bad * size;
  return InRow(
      column, row_number,
      absl::StrCat("value ", ElementText(stored.type, at), " of type ", DataTypeName(stored.type),
                   " (expected a value of type ", DataTypeName(type), ")"));
}

}  // namespace braid
