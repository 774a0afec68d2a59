#include "server/parallel/sum_gradients.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ops/add.h"

namespace braid {

void SumGradients(const std::vector<std::vector<at::Tensor>>& gradients, const FlatParameters& flat,
                  size_t buffer, const Slice& slice) {
  std::vector<at::Tensor> terms;
  for (size_t p = 0; p < flat.slots().size(); ++p) {
    const FlatSlot& slot = flat.slots()[p];
    const int64_t begin = std::max(slot.offset, slice.begin);
    const int64_t end = std::min(slot.offset + slot.numel, slice.end);
    if (slot.buffer != buffer || begin >= end) {
      continue;
    }
    terms.clear();
    for (const std::vector<at::Tensor>& replica : gradients) {
      if (replica[p].defined()) {
        terms.push_back(replica[p].view(-1).narrow(0, begin - slot.offset, end - begin));
      }
    }
    at::Tensor sum = flat.gradients()[buffer].narrow(0, begin, end - begin);
    if (terms.empty()) {
      sum.zero_();
    } else if (terms.size() == 1) {
      sum.copy_(terms[0]);
    } else {
      at::add_out(sum, terms[0], terms[1]);
    }
    for (size_t t = 2; t < terms.size(); ++t) {
      sum.add_(terms[t]);
    }
  }
}

}  // namespace braid
