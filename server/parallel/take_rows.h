// Rows of a batch that lies in chunks on several devices, brought to one.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace braid {

// Rows [start, start + rows) of the chunks' concatenation along dim 0, on `device`; the chunk
// itself where it is just that and is there. Every chunk has at least one dimension.
at::Tensor TakeRows(const std::vector<at::Tensor>& chunks, int64_t start, int64_t rows,
                    c10::Device device);

}  // namespace braid
