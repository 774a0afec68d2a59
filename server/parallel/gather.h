// From the chunks' outputs to the batch's, and back for gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"

namespace braid {

// Concatenates, output by output, the chunks along dim 0 on `device`; a 0-dim output becomes one
// with an element a chunk. `chunks[c][o]` is output o of chunk c; all chunks have the same outputs.
// FAILED_PRECONDITION if an output's dim 0 is not its chunk's `rows`.
absl::StatusOr<std::vector<at::Tensor>> Gather(const std::vector<std::vector<at::Tensor>>& chunks,
                                               const std::vector<int64_t>& rows,
                                               c10::Device device);

// The part of `gathered`, as Gather() made it, that belongs to chunk `chunk`: a view.
at::Tensor ChunkOf(const at::Tensor& gathered, bool zero_dim, const std::vector<int64_t>& rows,
                   size_t chunk);

}  // namespace braid
