#include "server/data/encoded/bytes_column.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "arrow/array.h"
#include "arrow/type.h"
#include "arrow/type_traits.h"

namespace braid {
namespace {

constexpr char kBytesField[] = "bytes";

template <typename ArrayType>
absl::string_view View(const arrow::Array& array, int64_t row) {
  const std::string_view view = static_cast<const ArrayType&>(array).GetView(row);
  return {view.data(), view.size()};
}

// Returns the elements of a list.
template <typename ListArray>
std::optional<absl::string_view> ViewList(const ListArray& lists, int64_t row) {
  int64_t begin = lists.value_offset(row);
  int64_t count = lists.value_length(row);
  const arrow::Array* values = lists.values().get();
  while (true) {
    if (values->null_count() > 0 && values->Slice(begin, count)->null_count() > 0) {
      return std::nullopt;
    }
    if (values->type_id() != arrow::Type::FIXED_SIZE_LIST) {
      break;
    }
    const auto& fixed = static_cast<const arrow::FixedSizeListArray&>(*values);
    begin = fixed.value_offset(begin);
    count *= fixed.value_length();
    values = fixed.values().get();
  }
  if (count == 0) {
    return absl::string_view();
  }
  const int64_t width = values->type()->byte_width();
  const uint8_t* const data = values->data()->buffers[1]->data();
  return absl::string_view(reinterpret_cast<const char*>(data + (values->offset() + begin) * width),
                           static_cast<size_t>(count * width));
}

}  // namespace

bool HoldsBytes(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
      return true;
    case arrow::Type::DICTIONARY:
      return HoldsBytes(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case arrow::Type::STRUCT: {
      const auto field = static_cast<const arrow::StructType&>(type).GetFieldByName(kBytesField);
      return field != nullptr && (field->type()->id() == arrow::Type::BINARY ||
                                  field->type()->id() == arrow::Type::LARGE_BINARY);
    }
    default:
      return false;
  }
}

bool HoldsLists(const arrow::DataType& type) {
  if (type.id() != arrow::Type::LIST && type.id() != arrow::Type::LARGE_LIST) {
    return false;
  }
  const arrow::DataType* element = type.field(0)->type().get();
  while (element->id() == arrow::Type::FIXED_SIZE_LIST) {
    element = element->field(0)->type().get();
  }
  return arrow::is_integer(element->id()) || arrow::is_floating(element->id());
}

std::optional<absl::string_view> BytesOfRow(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) {
    return std::nullopt;
  }
  switch (array.type_id()) {
    case arrow::Type::LARGE_BINARY:
      return View<arrow::LargeBinaryArray>(array, row);
    case arrow::Type::STRING:
      return View<arrow::StringArray>(array, row);
    case arrow::Type::LARGE_STRING:
      return View<arrow::LargeStringArray>(array, row);
    case arrow::Type::LIST:
      return ViewList(static_cast<const arrow::ListArray&>(array), row);
    case arrow::Type::LARGE_LIST:
      return ViewList(static_cast<const arrow::LargeListArray&>(array), row);
    case arrow::Type::DICTIONARY: {
      const auto& encoded = static_cast<const arrow::DictionaryArray&>(array);
      return BytesOfRow(*encoded.dictionary(), encoded.GetValueIndex(row));
    }
    case arrow::Type::STRUCT:
      return BytesOfRow(*static_cast<const arrow::StructArray&>(array).GetFieldByName(kBytesField),
                        row);
    default:
      return View<arrow::BinaryArray>(array, row);
  }
}

}  // namespace braid
