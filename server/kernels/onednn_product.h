// Matrix products by oneDNN.
#pragma once

#include <optional>

#include "ATen/core/Tensor.h"
#include "server/devices/thread_kernels.h"

namespace braid {

// True if LibTorch was built with oneDNN and may use it.
bool HasOneDnn();

// True for dense float32 tensors in host memory, with any strides and nothing pending.
bool IsPlainFloat(const at::Tensor& tensor);
// True if there is no bias, or a contiguous one. oneDNN ignores the strides of a bias.
bool FitsAsBias(const std::optional<at::Tensor>& bias, int64_t outputs);
// True if neither autograd nor autocast is enabled on the calling thread.
bool IsFreeOfModes();

// Returns `input` times the transpose of `weight` plus `bias`: float32 on the CPU, without a
// gradient. weight: a matrix with any strides, or one that oneDNN has packed.
at::Tensor OneDnnLinear(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias);

// Within its scope, oneDNN computes large float32 matrix products on the calling thread if autograd
// does not record them, as in exported graphs and backward passes. They take 85 to 95 % of the time
// of MKL. Results differ in the last bits.
class OneDnnProductsGuard {
 public:
  OneDnnProductsGuard();
  ~OneDnnProductsGuard();
  OneDnnProductsGuard(const OneDnnProductsGuard&) = delete;
  OneDnnProductsGuard& operator=(const OneDnnProductsGuard&) = delete;

 private:
  const bool outer_;
  const ThreadKernelsGuard kernels_;
};

}  // namespace braid
