#include "server/devices/staging.h"

#include <optional>

#include "ATen/EmptyTensor.h"

namespace braid {

at::Tensor Staging::Empty(at::IntArrayRef shape, c10::ScalarType type) {
  return tensors_.emplace_back(at::detail::empty_generic(
      shape, memory_, c10::DispatchKeySet(c10::DispatchKey::CPU), type, std::nullopt));
}

at::Tensor Staging::Upload(const at::Tensor& host) {
  if (!needed()) {
    return host;
  }
  const at::Tensor staged = Empty(host.sizes(), host.scalar_type());
  staged.copy_(host);
  return staged.to(at::TensorOptions(device_), /*non_blocking=*/true);
}

}  // namespace braid
