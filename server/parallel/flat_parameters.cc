#include "server/parallel/flat_parameters.h"

#include <algorithm>

#include "ATen/ops/_foreach_add.h"
#include "ATen/ops/_foreach_copy.h"
#include "ATen/ops/zeros.h"
#include "c10/core/ScalarType.h"

namespace braid {
namespace {

// Bytes. Vectorized kernels and transfers need aligned addresses.
constexpr int64_t kAlignment = 64;

int64_t Padded(int64_t numel, size_t element_size) {
  const int64_t step = kAlignment / static_cast<int64_t>(element_size);
  return (numel + step - 1) / step * step;
}

}  // namespace

FlatParameters::FlatParameters(Replica& replica, const std::vector<bool>& frozen)
    : FlatParameters(replica, frozen, nullptr) {}

FlatParameters::FlatParameters(Replica& replica, const std::vector<bool>& frozen,
                               const FlatParameters& primary)
    : FlatParameters(replica, frozen, &primary) {}

FlatParameters::FlatParameters(Replica& replica, const std::vector<bool>& frozen,
                               const FlatParameters* primary)
    : reached_(replica.parameters().size(), false) {
  const auto is_frozen = [&frozen](size_t p) { return !frozen.empty() && frozen[p]; };
  std::vector<c10::ScalarType> types;
  std::vector<int64_t> sizes;
  for (const Parameter& parameter : replica.parameters()) {
    if (is_frozen(slots_.size())) {
      slots_.emplace_back();
      continue;
    }
    const at::Tensor& value = parameter.value;
    auto found = std::find(types.begin(), types.end(), value.scalar_type());
    if (found == types.end()) {
      found = types.insert(types.end(), value.scalar_type());
      sizes.push_back(0);
    }
    const auto buffer = static_cast<size_t>(found - types.begin());
    const int64_t padded = Padded(value.numel(), value.element_size());
    slots_.push_back({buffer, sizes[buffer], value.numel(), padded});
    sizes[buffer] += padded;
  }
  if (slots_.empty()) {
    return;
  }
  const c10::Device device = replica.parameters().front().value.device();
  for (size_t b = 0; b < types.size(); ++b) {
    const auto options = at::TensorOptions().dtype(types[b]).device(device);
    values_.push_back(primary != nullptr ? primary->values_[b] : at::zeros({sizes[b]}, options));
    gradients_.push_back(at::zeros({sizes[b]}, options));
  }
  for (size_t p = 0; p < slots_.size(); ++p) {
    const at::Tensor value = replica.parameters()[p].value.detach();
    const auto view_in = [&](const std::vector<at::Tensor>& buffers) {
      const FlatSlot& slot = slots_[p];
      return buffers[slot.buffer].narrow(0, slot.offset, slot.numel).view(value.sizes());
    };
    gradient_views_.push_back(is_frozen(p) ? at::Tensor() : view_in(gradients_));
    if (primary != nullptr) {
      value_views_.push_back(primary->value_views_[p]);
    } else {
      value_views_.push_back(is_frozen(p) ? value : view_in(values_).copy_(value));
    }
    replica.BindParameter(p, value_views_[p]);
  }
}

void FlatParameters::Accumulate(const std::vector<at::Tensor>& gradients, bool first) {
  if (first) {
    std::fill(reached_.begin(), reached_.end(), false);
  }
  // On a GPU, dense gradients need a few kernels in all instead of one per parameter.
  std::vector<at::Tensor> dense_views;
  std::vector<at::Tensor> dense;
  for (size_t p = 0; p < gradients.size(); ++p) {
    const at::Tensor& view = gradient_views_[p];
    const at::Tensor& gradient = gradients[p];
    if (gradient.defined() && !gradient.is_sparse()) {
      dense_views.push_back(view);
      dense.push_back(gradient);
    } else if (first && !frozen(p)) {
      view.zero_();
    }
    if (gradient.defined() && gradient.is_sparse()) {
      view.add_(gradient);
    }
    reached_[p] = reached_[p] || gradient.defined();
  }
  if (dense.empty()) {
    return;
  }
  if (first) {
    at::_foreach_copy_(dense_views, dense);
  } else {
    at::_foreach_add_(dense_views, dense);
  }
}

void FlatParameters::Clear() {
  for (const at::Tensor& flat : gradients_) {
    flat.zero_();
  }
  std::fill(reached_.begin(), reached_.end(), false);
}

void FlatParameters::Put(size_t p, const at::Tensor& gradient) {
  gradient_views_[p].add_(gradient);
  reached_[p] = true;
}

void FlatParameters::MarkReached(const std::vector<at::Tensor>& gradients) {
  for (size_t p = 0; p < gradients.size(); ++p) {
    reached_[p] = gradients[p].defined();
  }
}

SavedGradients FlatParameters::SaveGradients() const {
  SavedGradients saved{{}, reached_};
  for (const at::Tensor& flat : gradients_) {
    saved.flat.push_back(flat.clone());
  }
  return saved;
}

void FlatParameters::RestoreGradients(const SavedGradients& saved) {
  for (size_t b = 0; b < gradients_.size(); ++b) {
    gradients_[b].copy_(saved.flat[b]);
  }
  reached_ = saved.reached;
}

}  // namespace braid
