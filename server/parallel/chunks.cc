#include "server/parallel/chunks.h"

#include <algorithm>
#include <numeric>

#include "ATen/ops/cat.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace braid {
namespace {

absl::Status CheckRows(const at::Tensor& output, size_t index, int64_t rows) {
  if (output.dim() == 0 || output.size(0) == rows) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("output ", index, " of the model has ",
                                                    output.size(0), " rows for a chunk of ", rows,
                                                    ": it is not batched along dim 0"));
}

}  // namespace

std::vector<int64_t> ChunkSizes(int64_t rows, int64_t replicas) {
  const int64_t size = (rows + replicas - 1) / replicas;
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < rows; start += size) {
    sizes.push_back(std::min(size, rows - start));
  }
  return sizes;
}

absl::StatusOr<std::vector<at::Tensor>> Gather(const std::vector<std::vector<at::Tensor>>& chunks,
                                               const std::vector<int64_t>& rows,
                                               c10::Device device) {
  std::vector<at::Tensor> gathered;
  gathered.reserve(chunks.front().size());
  for (size_t o = 0; o < chunks.front().size(); ++o) {
    std::vector<at::Tensor> parts;
    parts.reserve(chunks.size());
    for (size_t c = 0; c < chunks.size(); ++c) {
      const at::Tensor& part = chunks[c][o];
      if (absl::Status status = CheckRows(part, o, rows[c]); !status.ok()) {
        return status;
      }
      parts.push_back((part.dim() == 0 ? part.unsqueeze(0) : part).to(device));
    }
    gathered.push_back(parts.size() == 1 ? parts.front() : at::cat(parts));
  }
  return gathered;
}

at::Tensor ChunkOf(const at::Tensor& gathered, bool zero_dim, const std::vector<int64_t>& rows,
                   size_t chunk) {
  const auto index = static_cast<int64_t>(chunk);
  if (zero_dim) {
    return gathered.select(0, index);
  }
  const int64_t start = std::accumulate(rows.begin(), rows.begin() + index, int64_t{0});
  return gathered.narrow(0, start, rows[chunk]);
}

at::Tensor ConcatenateRows(const std::vector<at::Tensor>& chunks, int64_t start, int64_t rows,
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
