#include "server/data/encoded/bytes_column.h"

#include <memory>
#include <string_view>

#include "arrow/array.h"
#include "arrow/type.h"

namespace braid {
namespace {

constexpr char kBytesField[] = "bytes";

template <typename ArrayType>
absl::string_view View(const arrow::Array& array, int64_t row) {
  const std::string_view view = static_cast<const ArrayType&>(array).GetView(row);
  return {view.data(), view.size()};
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
