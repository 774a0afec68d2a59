// Splits batches into chunks along dim 0, one per replica, and gathers their outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"

namespace braid {

// Returns the rows of each chunk of a batch of `rows` rows on at most `replicas` replicas. Follows
// torch.chunk: every chunk has ceil(rows / replicas) rows and the last one has the rest, so there
// may be fewer chunks than replicas.
std::vector<int64_t> ChunkSizes(int64_t rows, int64_t replicas);

// Concatenates the chunks' outputs along dim 0 on `device`. A 0-dim output becomes a vector with
// one element per chunk. `chunks[c][o]` is output o of chunk c; all chunks have the same outputs.
// FAILED_PRECONDITION if dim 0 of an output differs from its chunk's `rows`.
absl::StatusOr<std::vector<at::Tensor>> Gather(const std::vector<std::vector<at::Tensor>>& chunks,
                                               const std::vector<int64_t>& rows,
                                               c10::Device device);

// Returns a view of the part of `gathered`, a result of Gather(), that belongs to `chunk`.
at::Tensor ChunkOf(const at::Tensor& gathered, bool zero_dim, const std::vector<int64_t>& rows,
                   size_t chunk);

// Returns rows [start, start + rows) of the concatenation of `chunks` along dim 0, on `device`.
// Does not copy a chunk on `device` that holds all of these rows. Every chunk has at least one
// dimension.
at::Tensor ConcatenateRows(const std::vector<at::Tensor>& chunks, int64_t start, int64_t rows,
                           c10::Device device);

}  // namespace braid
