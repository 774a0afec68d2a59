// Dense tensors on the client side.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace braid::client {

// One named tensor. Plain data: thread-compatible.
struct Tensor {
  std::string name;
  // BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32 or FP64; BYTES
  // for the inputs that MakeEncoded() makes.
  std::string datatype;
  // Outermost dimension first. Empty for a scalar.
  std::vector<int64_t> shape;
  // Elements in row-major order without padding, little-endian. Its size must match `shape` and
  // `datatype`.
  std::string data;
};

// Returns the bytes of one element; 0 for an unknown datatype.
size_t ElementSize(absl::string_view datatype);

// Returns the number of elements. INVALID_ARGUMENT if a dimension is negative or the number exceeds
// 2^59.
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape);

// Returns the bytes of a tensor. INVALID_ARGUMENT if the datatype is unknown or ElementCount fails.
absl::StatusOr<int64_t> ByteCount(absl::string_view datatype, absl::Span<const int64_t> shape);

// Returns the datatype of elements of type T, for example "FP32" for float. T is a fixed-width
// integer, float or double.
template <typename T>
constexpr absl::string_view DatatypeOf() {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8);
  if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? "FP32" : "FP64";
  } else if constexpr (std::is_signed_v<T>) {
    constexpr absl::string_view kNames[] = {"INT8", "INT16", "INT32", "INT64"};
    return kNames[std::bit_width(sizeof(T)) - 1];
  } else {
    constexpr absl::string_view kNames[] = {"UINT8", "UINT16", "UINT32", "UINT64"};
    return kNames[std::bit_width(sizeof(T)) - 1];
  }
}

// Copies `values` into a tensor. Their number must equal the product of `shape`; otherwise the
// server rejects the tensor.
template <typename T>
Tensor MakeTensor(std::string name, std::vector<int64_t> shape, absl::Span<const T> values) {
  Tensor tensor{std::move(name), std::string(DatatypeOf<T>()), std::move(shape), {}};
  tensor.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return tensor;
}

// Returns an input that the server decodes: one image file or text per row. The datatype is BYTES,
// the shape [rows.size()].
Tensor MakeEncoded(std::string name, absl::Span<const absl::string_view> rows);

// Copies the elements out. INVALID_ARGUMENT if the tensor's datatype does not match T.
template <typename T>
absl::StatusOr<std::vector<T>> Values(const Tensor& tensor) {
  if (tensor.datatype != DatatypeOf<T>()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "': datatype ",
                                                   tensor.datatype, " (expected ", DatatypeOf<T>(),
                                                   ")"));
  }
  std::vector<T> values(tensor.data.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace braid::client
