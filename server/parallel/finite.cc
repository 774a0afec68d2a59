#include "server/parallel/finite.h"

#include <cmath>

namespace braid {

bool IsFinite(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  // Infinities and NaN survive a sum. Half would overflow before its elements do.
  const at::Tensor sum = values.scalar_type() == at::kHalf ? values.sum(at::kFloat) : values.sum();
  return std::isfinite(sum.item<double>());
}

}  // namespace braid
