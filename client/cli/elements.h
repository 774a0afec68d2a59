// A tensor's elements as values, for people and for JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/types/span.h"
#include "client/cpp/tensor.h"
#include "nlohmann/json.hpp"

namespace braid::cli {

// Exact: every value of both is one of float.
float FromFp16(uint16_t bits);
float FromBf16(uint16_t bits);

namespace internal {

template <typename T, typename Convert>
void ForEachAs(const std::string& data, Convert convert) {
  for (size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, data.data() + at, sizeof(T));
    convert(value);
  }
}

}  // namespace internal

// Calls visit(value) for each element in order, with a value of bool, a fixed-width integer, float
// (also for FP16 and BF16) or double. Returns false, calling nothing, for an unknown datatype.
template <typename Visit>
bool ForEachElement(const client::Tensor& tensor, Visit visit) {
  const std::string& type = tensor.datatype;
  const std::string& data = tensor.data;
  // clang-format off
  if (type == "BOOL") internal::ForEachAs<uint8_t>(data, [&](uint8_t v) { visit(v != 0); });
  else if (type == "UINT8") internal::ForEachAs<uint8_t>(data, visit);
  else if (type == "UINT16") internal::ForEachAs<uint16_t>(data, visit);
  else if (type == "UINT32") internal::ForEachAs<uint32_t>(data, visit);
  else if (type == "UINT64") internal::ForEachAs<uint64_t>(data, visit);
  else if (type == "INT8") internal::ForEachAs<int8_t>(data, visit);
  else if (type == "INT16") internal::ForEachAs<int16_t>(data, visit);
  else if (type == "INT32") internal::ForEachAs<int32_t>(data, visit);
  else if (type == "INT64") internal::ForEachAs<int64_t>(data, visit);
  else if (type == "FP16") internal::ForEachAs<uint16_t>(data, [&](uint16_t v) { visit(FromFp16(v)); });
  else if (type == "BF16") internal::ForEachAs<uint16_t>(data, [&](uint16_t v) { visit(FromBf16(v)); });
  else if (type == "FP32") internal::ForEachAs<float>(data, visit);
  else if (type == "FP64") internal::ForEachAs<double>(data, visit);
  else return false;
  // clang-format on
  return true;
}

// "[30, 5]".
std::string FormatShape(absl::Span<const int64_t> shape);

// The values in nested brackets, a line for each innermost row, six significant digits. The number
// of elements must be what the shape says; returns "" if it is not.
std::string FormatValues(const client::Tensor& tensor);

// The values as one flat array; NaN and infinities become null.
nlohmann::ordered_json JsonValues(const client::Tensor& tensor);

}  // namespace braid::cli
