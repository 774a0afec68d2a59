// How a batch is cut along dim 0.
#pragma once

#include <cstdint>
#include <vector>

namespace braid {

// Rows of each chunk of `rows` rows on at most `replicas` replicas, by torch.chunk's rule:
// ceil(rows / replicas) each, the last one what is left, so there may be fewer chunks than
// replicas.
std::vector<int64_t> ChunkSizes(int64_t rows, int64_t replicas);

}  // namespace braid
