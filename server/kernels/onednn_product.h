// Products of matrices by oneDNN.
#pragma once

#include <optional>

#include "ATen/core/Tensor.h"
#include "server/devices/thread_kernels.h"

namespace braid {

// Whether LibTorch has oneDNN in it, and may use it.
bool HasOneDnn();

// Float32 numbers in plain memory of the host, with any strides.
bool IsPlainFloat(const at::Tensor& tensor);
// Whether there is no bias, or one that oneDNN, which does not look at its strides, reads right.
bool FitsAsBias(const std::optional<at::Tensor>& bias, int64_t outputs);
// Whether neither gradients are recorded nor anything is cast on the calling thread.
bool IsFreeOfModes();

// `input` times the transpose of `weight`, plus `bias` if there is one: float32, on the CPU,
// without a gradient. `weight`: a matrix in any layout, or one that oneDNN has laid out for itself.
at::Tensor OneDnnLinear(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias);

// Large products of float32 matrices that have no gradient of their own, which are those of
// exported graphs and of backward passes, are oneDNN's on the calling thread, for its scope: they
// take 0.85 to 0.95 of the time that MKL takes. The last bits are others.
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
