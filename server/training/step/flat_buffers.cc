#include "server/training/step/flat_buffers.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"
#include "server/parallel/copy_tensors.h"

namespace braid {
namespace {

// Aligns every buffer to at least 64 bytes for every datatype.
constexpr int64_t kElements = 64;

}  // namespace

FlatBuffers::FlatBuffers(const std::vector<at::Tensor>& values) {
  std::vector<at::ScalarType> types;
  std::vector<int64_t> sizes;
  for (const at::Tensor& value : values) {
    const auto found = std::find(types.begin(), types.end(), value.scalar_type());
    const auto flat = static_cast<size_t>(found - types.begin());
    if (found == types.end()) {
      types.push_back(value.scalar_type());
      sizes.push_back(0);
    }
    slots_.push_back({flat, sizes[flat]});
    sizes[flat] += (value.numel() + kElements - 1) / kElements * kElements;
  }
  for (size_t f = 0; f < types.size(); ++f) {
    flat_.push_back(at::zeros({sizes[f]}, values.front().options().dtype(types[f])));
  }
  views_ = Views(flat_, values);
  Assign(values);
}

void FlatBuffers::Assign(const std::vector<at::Tensor>& values) {
  const c10::AutoGradMode no_grad(false);
  CopyTensors(views_, values);
}

std::vector<at::Tensor> FlatBuffers::On(c10::Device device) const {
  if (empty() || flat_.front().device() == device) {
    return views_;
  }
  std::vector<at::Tensor> there;
  for (const at::Tensor& flat : flat_) {
    there.push_back(flat.to(device, /*non_blocking=*/false));
  }
  return Views(there, views_);
}

std::vector<at::Tensor> FlatBuffers::Views(const std::vector<at::Tensor>& flat,
                                           const std::vector<at::Tensor>& like) const {
  std::vector<at::Tensor> views;
  for (size_t b = 0; b < like.size(); ++b) {
    const at::Tensor elements = flat[slots_[b].flat].narrow(0, slots_[b].offset, like[b].numel());
    views.push_back(elements.view(like[b].sizes()));
  }
  return views;
}

}  // namespace braid
