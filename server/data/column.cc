#include "server/data/column.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "arrow/extension/fixed_shape_tensor.h"
#include "arrow/type.h"
#include "arrow/util/key_value_metadata.h"
#include "server/base/host_tensor.h"
#include "server/base/text.h"
#include "server/data/encoded/bytes_column.h"

namespace braid {
namespace {

constexpr char kDatatypeKey[] = "braid.datatype";

std::optional<DataType> ElementType(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::BOOL:
      return DataType::kBool;
    case arrow::Type::UINT8:
      return DataType::kUint8;
    case arrow::Type::UINT16:
      return DataType::kUint16;
    case arrow::Type::UINT32:
      return DataType::kUint32;
    case arrow::Type::UINT64:
      return DataType::kUint64;
    case arrow::Type::INT8:
      return DataType::kInt8;
    case arrow::Type::INT16:
      return DataType::kInt16;
    case arrow::Type::INT32:
      return DataType::kInt32;
    case arrow::Type::INT64:
      return DataType::kInt64;
    case arrow::Type::HALF_FLOAT:
      return DataType::kFp16;
    case arrow::Type::FLOAT:
      return DataType::kFp32;
    case arrow::Type::DOUBLE:
      return DataType::kFp64;
    default:
      return std::nullopt;
  }
}

std::shared_ptr<arrow::DataType> ArrowElement(DataType type) {
  switch (type) {
    case DataType::kBool:
      return arrow::boolean();
    case DataType::kUint8:
      return arrow::uint8();
    case DataType::kUint16:
      return arrow::uint16();
    case DataType::kUint32:
      return arrow::uint32();
    case DataType::kUint64:
      return arrow::uint64();
    case DataType::kInt8:
      return arrow::int8();
    case DataType::kInt16:
      return arrow::int16();
    case DataType::kInt32:
      return arrow::int32();
    case DataType::kInt64:
      return arrow::int64();
    case DataType::kFp16:
      return arrow::float16();
    case DataType::kBf16:
      return arrow::fixed_size_binary(2);
    case DataType::kFp32:
      return arrow::float32();
    case DataType::kFp64:
      return arrow::float64();
  }
  return nullptr;
}

bool IsMarkedBf16(const arrow::Field& field) {
  return field.metadata() != nullptr &&
         field.metadata()->Get(kDatatypeKey).ValueOr("") == DataTypeName(DataType::kBf16);
}

std::optional<RowType> TensorRow(const arrow::Field& field) {
  const arrow::DataType* type = field.type().get();
  RowType row;
  if (type->id() == arrow::Type::EXTENSION) {
    const auto* tensor = dynamic_cast<const arrow::extension::FixedShapeTensorType*>(type);
    if (tensor == nullptr) {
      return std::nullopt;
    }
    const std::optional<DataType> element = ElementType(*tensor->value_type());
    // pyarrow always writes a permutation.
    if (!element.has_value() || !std::ranges::is_sorted(tensor->permutation())) {
      return std::nullopt;
    }
    return RowType{*element, tensor->shape()};
  }
  if (type->id() == arrow::Type::LIST || type->id() == arrow::Type::LARGE_LIST) {
    row.shape.push_back(kUnknownDim);
    type = type->field(0)->type().get();
  }
  while (type->id() == arrow::Type::FIXED_SIZE_LIST) {
    const auto& list = static_cast<const arrow::FixedSizeListType&>(*type);
    row.shape.push_back(list.list_size());
    type = list.value_type().get();
  }
  if (type->id() == arrow::Type::FIXED_SIZE_BINARY && IsMarkedBf16(field) &&
      static_cast<const arrow::FixedSizeBinaryType&>(*type).byte_width() == 2) {
    row.type = DataType::kBf16;
    return row;
  }
  const std::optional<DataType> element = ElementType(*type);
  if (!element.has_value()) {
    return std::nullopt;
  }
  row.type = *element;
  return row;
}

}  // namespace

Column ColumnOf(const arrow::Field& field) {
  return {field.name(), field.type()->ToString(), TensorRow(field), HoldsBytes(*field.type()),
          HoldsLists(*field.type())};
}

absl::StatusOr<std::shared_ptr<arrow::Field>> FieldOf(const std::string& name, const RowType& row) {
  std::shared_ptr<arrow::DataType> type = ArrowElement(row.type);
  for (auto dim = row.shape.rbegin(); dim != row.shape.rend(); ++dim) {
    if (*dim < 0 || *dim > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("column '", name, "' has rows of ",
                                                     RowTypeString(row),
                                                     " (expected known sizes below 2^31)"));
    }
    type = arrow::fixed_size_list(std::move(type), static_cast<int32_t>(*dim));
  }
  std::shared_ptr<const arrow::KeyValueMetadata> metadata;
  if (row.type == DataType::kBf16) {
    metadata =
        arrow::key_value_metadata({kDatatypeKey}, {std::string(DataTypeName(DataType::kBf16))});
  }
  return arrow::field(name, std::move(type), /*nullable=*/false, std::move(metadata));
}

std::optional<size_t> RowBytes(const RowType& row) { return BytesOf(row.type, row.shape); }

size_t EstimatedRowBytes(const Column& column) {
  constexpr size_t kVariableBytes = 64;
  constexpr size_t kImageBytes = size_t{64} << 10;
  // Strings are often short, other bytes are often images.
  if (column.bytes && !absl::StrContains(column.arrow_type, "string")) {
    return kImageBytes;
  }
  return column.row.has_value() ? RowBytes(*column.row).value_or(kVariableBytes) : kVariableBytes;
}

std::string SchemaDifference(const arrow::Schema& schema, const arrow::Schema& expected,
                             absl::string_view like) {
  const auto type_of = [](const arrow::Field& field) {
    return absl::StrCat(field.type()->ToString(), field.nullable() ? "" : " not null");
  };
  const int common = std::min(schema.num_fields(), expected.num_fields());
  for (int c = 0; c < common; ++c) {
    const arrow::Field& own = *schema.field(c);
    const arrow::Field& other = *expected.field(c);
    if (own.name() != other.name()) {
      return absl::StrCat("column ", c + 1, " is '", Excerpt(own.name()), "' (expected '",
                          Excerpt(other.name()), "', as in ", like, ")");
    }
    if (!own.Equals(other, /*check_metadata=*/false)) {
      return absl::StrCat("column '", Excerpt(own.name()), "' has type ", type_of(own),
                          " (expected ", type_of(other), ", as in ", like, ")");
    }
  }
  if (schema.num_fields() == expected.num_fields()) {
    return "";
  }
  const bool more = schema.num_fields() > common;
  const arrow::Field& first = more ? *schema.field(common) : *expected.field(common);
  return more ? absl::StrCat("unexpected column '", Excerpt(first.name()), "' (", like,
                             " has no such column)")
              : absl::StrCat("no column '", Excerpt(first.name()), "' (expected it, as in ", like,
                             ")");
}

std::string RowTypeString(const RowType& row) {
  const std::string dims = absl::StrJoin(row.shape, ", ", [](std::string* out, int64_t dim) {
    if (dim == kUnknownDim) {
      out->push_back('?');
    } else {
      absl::StrAppend(out, dim);
    }
  });
  return absl::StrCat(DataTypeName(row.type), " [", dims, "]");
}

}  // namespace braid
