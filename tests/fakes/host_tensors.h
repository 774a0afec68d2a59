// Tensors in host memory for tests, and their values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/data_type.h"
#include "server/base/host_tensor.h"

namespace braid {

template <typename T>
constexpr DataType DataTypeOf();
template <>
constexpr DataType DataTypeOf<float>() {
  return DataType::kFp32;
}
template <>
constexpr DataType DataTypeOf<double>() {
  return DataType::kFp64;
}
template <>
constexpr DataType DataTypeOf<int64_t>() {
  return DataType::kInt64;
}
template <>
constexpr DataType DataTypeOf<int32_t>() {
  return DataType::kInt32;
}

// A tensor that owns its bytes.
template <typename T>
HostTensor MakeHost(std::string name, std::vector<int64_t> shape, const std::vector<T>& values) {
  const std::shared_ptr<T[]> copy(new T[values.size()]);
  std::copy(values.begin(), values.end(), copy.get());
  return {std::move(name), DataTypeOf<T>(),           std::move(shape),
          copy.get(),      values.size() * sizeof(T), copy};
}

// The first value of each row counts up from `first`, so that rows differ.
inline HostTensor MakeRows(std::string name, int64_t rows, double first) {
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r) {
    values.push_back(static_cast<float>(first) + static_cast<float>(r));
  }
  return MakeHost<float>(std::move(name), {rows, 1}, values);
}

template <typename T>
std::vector<T> ValuesOf(const HostTensor& tensor) {
  std::vector<T> values(tensor.bytes / sizeof(T));
  if (tensor.bytes > 0) {
    std::memcpy(values.data(), tensor.data, tensor.bytes);
  }
  return values;
}

// Returns the bytes of all pieces.
template <typename T>
std::vector<T> ValuesOf(const GatheredTensor& tensor) {
  std::vector<T> values;
  for (const HostTensor& piece : tensor.pieces) {
    const std::vector<T> more = ValuesOf<T>(piece);
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

}  // namespace braid
