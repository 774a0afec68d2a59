// Tensors in host memory, as they pass between the wire and the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/base/data_type.h"

namespace braid {

// Row-major, without padding, little-endian. `owner` keeps `data` alive. Copies share the bytes,
// which must not change while others may read them.
struct HostTensor {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;
  // An input that is not split along dim 0: every replica gets all of it.
  bool broadcast = false;

  // Returns dim 0. Requires a rank of at least 1.
  int64_t rows() const { return shape.front(); }
};

// Tensor in pieces along dim 0. `shape` and `bytes` are those of the whole tensor.
struct GatheredTensor {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  size_t bytes = 0;
  std::vector<HostTensor> pieces;
};

// Returns the bytes of a tensor; nullopt if a dimension is negative or the product overflows.
std::optional<size_t> BytesOf(DataType type, const std::vector<int64_t>& shape);

// Formats a shape as "[20, 10]".
std::string ShapeString(const std::vector<int64_t>& shape);

}  // namespace braid
