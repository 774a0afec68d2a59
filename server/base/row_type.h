// Type and shape of one row of a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "server/base/data_type.h"

namespace braid {

// Size of a dimension that may differ between batches, such as the length of a text.
inline constexpr int64_t kUnknownDim = -1;

// A number has the shape [].
struct RowType {
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;

  friend bool operator==(const RowType&, const RowType&) = default;
};

}  // namespace braid
