#include "server/parallel/finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "ATen/Dispatch.h"
#include "ATen/ops/aminmax.h"

namespace braid {
namespace {

double LargestOf(at::ScalarType type) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "LargestOf", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::max());
  });
}

}  // namespace

double RangeShare(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  if (values.numel() == 0) {
    return 0;
  }
  const auto [least, most] = at::aminmax(values);  // NaN, if there is one
  const double magnitude = std::max(std::abs(least.item<double>()), std::abs(most.item<double>()));
  return std::isfinite(magnitude) && std::isfinite(least.item<double>())
             ? magnitude / LargestOf(values.scalar_type())
             : std::numeric_limits<double>::infinity();
}

}  // namespace braid
