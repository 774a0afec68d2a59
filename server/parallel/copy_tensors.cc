#include "server/parallel/copy_tensors.h"

#include <cstddef>
#include <map>
#include <utility>

#include "ATen/ops/_foreach_copy.h"

namespace braid {
namespace {

// Returns true for a tensor whose memory holds other numbers than the tensor, which _foreach_copy_
// does not support.
bool IsLazy(const at::Tensor& tensor) { return tensor.is_neg() || tensor.is_conj(); }

}  // namespace

void CopyTensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  // LibTorch has one kernel only for tensors of one datatype.
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_type;
  for (size_t i = 0; i < to.size(); ++i) {
    if (IsLazy(to[i]) || IsLazy(from[i])) {
      to[i].copy_(from[i]);
      continue;
    }
    auto& [targets, sources] = by_type[to[i].scalar_type()];
    targets.push_back(to[i]);
    sources.push_back(from[i]);
  }
  for (const auto& [type, tensors] : by_type) {
    at::_foreach_copy_(tensors.first, tensors.second);
  }
}

}  // namespace braid
