// A tensor in host memory, as it crosses the border between the wire and the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/base/data_type.h"

namespace braid {

// Row-major, no padding, little-endian. `owner` keeps `data` alive; the bytes are not to be changed
// while anyone else may read them. Copying one copies no bytes.
struct HostTensor {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;
  // An input that is not cut along dim 0: every replica gets it whole.
  bool broadcast = false;

  // Dim 0. Call it only where the rank is at least 1.
  int64_t rows() const { return shape.front(); }
};

// A tensor in pieces along dim 0, in their order. `shape` and `bytes` are the whole's.
struct GatheredTensor {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  size_t bytes = 0;
  std::vector<HostTensor> pieces;
};

// Bytes that `shape` and `type` ask for; nullopt if a dimension is negative or the product
// overflows.
std::optional<size_t> BytesOf(DataType type, const std::vector<int64_t>& shape);

// "[20, 10]".
std::string ShapeString(const std::vector<int64_t>& shape);

}  // namespace braid
