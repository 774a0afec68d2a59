// Divides a flat buffer into slices for several threads or devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ATen/core/Tensor.h"

namespace braid {

// Elements [begin, end).
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// Returns slice `part` of `parts` slices of a flat buffer. Borders are multiples of 64 bytes or the
// end of the buffer. Sizes differ by at most 64 bytes; a slice may be empty.
inline Slice SliceOf(const at::Tensor& flat, size_t part, size_t parts) {
  const int64_t step = 64 / static_cast<int64_t>(flat.element_size());
  const int64_t steps = (flat.numel() + step - 1) / step;
  const auto border = [&](size_t i) {
    const int64_t at = steps * static_cast<int64_t>(i) / static_cast<int64_t>(parts);
    return std::min(at * step, flat.numel());
  };
  return {border(part), border(part + 1)};
}

}  // namespace braid
