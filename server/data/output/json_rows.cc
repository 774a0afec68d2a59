#include "server/data/output/json_rows.h"

#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "arrow/array.h"
#include "arrow/record_batch.h"
#include "arrow/scalar.h"
#include "arrow/type.h"
#include "arrow/util/float16.h"
#include "nlohmann/json.hpp"
#include "server/data/arrow_status.h"

namespace braid {
namespace {

std::string Quoted(std::string_view text) {
  // Replaces invalid UTF-8, which JSON does not allow.
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Shortest text that gives the same number again. JSON has no NaN or infinity; they become null.
template <typename T>
void AppendFloat(T value, std::string* out) {
  if (!std::isfinite(value)) {
    out->append("null");
    return;
  }
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out->append(text.data(), end);
}

arrow::Status AppendValue(const arrow::Array& array, int64_t row, size_t max_binary_bytes,
                          std::string* out);

arrow::Status AppendList(const arrow::Array& values, int64_t begin, int64_t end,
                         size_t max_binary_bytes, std::string* out) {
  out->push_back('[');
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) {
      out->push_back(',');
    }
    ARROW_RETURN_NOT_OK(AppendValue(values, i, max_binary_bytes, out));
  }
  out->push_back(']');
  return arrow::Status::OK();
}

template <typename ArrayType>
auto ValueOf(const arrow::Array& array, int64_t row) {
  return static_cast<const ArrayType&>(array).Value(row);
}

template <typename ListType>
arrow::Status AppendListOf(const arrow::Array& array, int64_t row, size_t max_binary_bytes,
                           std::string* out) {
  const auto& list = static_cast<const ListType&>(array);
  return AppendList(*list.values(), list.value_offset(row),
                    list.value_offset(row) + list.value_length(row), max_binary_bytes, out);
}

arrow::Status AppendStruct(const arrow::StructArray& array, int64_t row, size_t max_binary_bytes,
                           std::string* out) {
  out->push_back('{');
  for (int f = 0; f < array.num_fields(); ++f) {
    absl::StrAppend(out, f == 0 ? "" : ",", Quoted(array.struct_type()->field(f)->name()), ":");
    ARROW_RETURN_NOT_OK(AppendValue(*array.field(f), row, max_binary_bytes, out));
  }
  out->push_back('}');
  return arrow::Status::OK();
}

void AppendBinary(std::string_view bytes, size_t max_binary_bytes, std::string* out) {
  const std::string_view shown = bytes.substr(0, max_binary_bytes);
  absl::StrAppend(out, "\"", absl::Base64Escape({shown.data(), shown.size()}));
  if (shown.size() < bytes.size()) {
    absl::StrAppend(out, "… (", bytes.size(), " bytes)");
  }
  out->push_back('"');
}

// Appends a number or a boolean. Returns false for values of other types.
bool AppendNumber(const arrow::Array& array, int64_t row, std::string* out) {
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      out->append(ValueOf<arrow::BooleanArray>(array, row) ? "true" : "false");
      break;
    case arrow::Type::UINT8:
      absl::StrAppend(out, int{ValueOf<arrow::UInt8Array>(array, row)});
      break;
    case arrow::Type::INT8:
      absl::StrAppend(out, int{ValueOf<arrow::Int8Array>(array, row)});
      break;
    case arrow::Type::UINT16:
      absl::StrAppend(out, ValueOf<arrow::UInt16Array>(array, row));
      break;
    case arrow::Type::INT16:
      absl::StrAppend(out, ValueOf<arrow::Int16Array>(array, row));
      break;
    case arrow::Type::UINT32:
      absl::StrAppend(out, ValueOf<arrow::UInt32Array>(array, row));
      break;
    case arrow::Type::INT32:
      absl::StrAppend(out, ValueOf<arrow::Int32Array>(array, row));
      break;
    case arrow::Type::UINT64:
      absl::StrAppend(out, ValueOf<arrow::UInt64Array>(array, row));
      break;
    case arrow::Type::INT64:
      absl::StrAppend(out, ValueOf<arrow::Int64Array>(array, row));
      break;
    case arrow::Type::HALF_FLOAT:
      AppendFloat(
          arrow::util::Float16::FromBits(ValueOf<arrow::HalfFloatArray>(array, row)).ToFloat(),
          out);
      break;
    case arrow::Type::FLOAT:
      AppendFloat(ValueOf<arrow::FloatArray>(array, row), out);
      break;
    case arrow::Type::DOUBLE:
      AppendFloat(ValueOf<arrow::DoubleArray>(array, row), out);
      break;
    default:
      return false;
  }
  return true;
}

arrow::Status AppendValue(const arrow::Array& array, int64_t row, size_t max_binary_bytes,
                          std::string* out) {
  if (array.IsNull(row)) {
    out->append("null");
    return arrow::Status::OK();
  }
  if (AppendNumber(array, row, out)) {
    return arrow::Status::OK();
  }
  switch (array.type_id()) {
    case arrow::Type::STRING:
      out->append(Quoted(static_cast<const arrow::StringArray&>(array).GetView(row)));
      break;
    case arrow::Type::LARGE_STRING:
      out->append(Quoted(static_cast<const arrow::LargeStringArray&>(array).GetView(row)));
      break;
    case arrow::Type::LIST:
      return AppendListOf<arrow::ListArray>(array, row, max_binary_bytes, out);
    case arrow::Type::LARGE_LIST:
      return AppendListOf<arrow::LargeListArray>(array, row, max_binary_bytes, out);
    case arrow::Type::FIXED_SIZE_LIST:
      return AppendListOf<arrow::FixedSizeListArray>(array, row, max_binary_bytes, out);
    case arrow::Type::MAP:
      return AppendListOf<arrow::MapArray>(array, row, max_binary_bytes, out);
    case arrow::Type::STRUCT:
      return AppendStruct(static_cast<const arrow::StructArray&>(array), row, max_binary_bytes,
                          out);
    case arrow::Type::BINARY:
      AppendBinary(static_cast<const arrow::BinaryArray&>(array).GetView(row), max_binary_bytes,
                   out);
      break;
    case arrow::Type::LARGE_BINARY:
      AppendBinary(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row),
                   max_binary_bytes, out);
      break;
    case arrow::Type::FIXED_SIZE_BINARY:
      AppendBinary(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(row),
                   max_binary_bytes, out);
      break;
    case arrow::Type::DICTIONARY: {
      const auto& encoded = static_cast<const arrow::DictionaryArray&>(array);
      return AppendValue(*encoded.dictionary(), encoded.GetValueIndex(row), max_binary_bytes, out);
    }
    default: {
      // Dates, decimals and others as Arrow prints them.
      ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::Scalar> scalar, array.GetScalar(row));
      out->append(Quoted(scalar->ToString()));
    }
  }
  return arrow::Status::OK();
}

}  // namespace

JsonRows::JsonRows(const arrow::Schema& schema, size_t max_binary_bytes)
    : max_binary_bytes_(max_binary_bytes) {
  for (const std::string& name : schema.field_names()) {
    keys_.push_back(absl::StrCat(keys_.empty() ? "{" : ",", Quoted(name), ":"));
  }
}

absl::Status JsonRows::Append(const arrow::RecordBatch& batch, int64_t row,
                              std::string* out) const {
  for (int c = 0; c < batch.num_columns(); ++c) {
    out->append(keys_[static_cast<size_t>(c)]);
    const arrow::Status status = AppendValue(*batch.column(c), row, max_binary_bytes_, out);
    if (!status.ok()) {
      return FromArrow(status, "format column", batch.column_name(c));
    }
  }
  out->push_back('}');
  return absl::OkStatus();
}

}  // namespace braid
