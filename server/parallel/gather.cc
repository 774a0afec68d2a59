#include "server/parallel/gather.h"

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

}  // namespace braid
