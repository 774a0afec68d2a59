#include "server/parallel/split.h"

#include <algorithm>

namespace braid {

std::vector<int64_t> ChunkSizes(int64_t rows, int64_t replicas) {
  const int64_t size = (rows + replicas - 1) / replicas;
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < rows; start += size) {
    sizes.push_back(std::min(size, rows - start));
  }
  return sizes;
}

}  // namespace braid
