#include "server/parallel/take_rows.h"

#include <algorithm>

#include "ATen/ops/cat.h"

namespace braid {

at::Tensor TakeRows(const std::vector<at::Tensor>& chunks, int64_t start, int64_t rows,
                    c10::Device device) {
  std::vector<at::Tensor> parts;
  int64_t chunk_start = 0;
  for (const at::Tensor& chunk : chunks) {
    const int64_t from = std::max(start, chunk_start);
    const int64_t to = std::min(start + rows, chunk_start + chunk.size(0));
    if (from < to) {
      const bool whole = to - from == chunk.size(0);
      parts.push_back((whole ? chunk : chunk.narrow(0, from - chunk_start, to - from)).to(device));
    }
    chunk_start += chunk.size(0);
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace braid
