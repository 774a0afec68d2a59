#include "server/parallel/finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "ATen/Dispatch.h"
#include "ATen/ops/aminmax.h"
#include "ATen/ops/stack.h"

namespace braid {
namespace {

double MaxOf(at::ScalarType type) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "MaxOf", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::max());
  });
}

struct Range {
  double min;
  double max;
};

// Returns NaN if an element is NaN. Needs one transfer from a GPU.
Range RangeOf(const at::Tensor& values) {
  const auto [min, max] = at::aminmax(values);
  if (values.is_cpu()) {
    return {min.item<double>(), max.item<double>()};
  }
  const at::Tensor both = at::stack({min, max}).cpu();
  return {both[0].item<double>(), both[1].item<double>()};
}

}  // namespace

double RangeShare(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  if (values.numel() == 0) {
    return 0;
  }
  const auto [min, max] = RangeOf(values);
  return RangeShare(min, max, values.scalar_type());
}

double RangeShare(double min, double max, at::ScalarType type) {
  const double magnitude = std::max(std::abs(min), std::abs(max));
  return std::isfinite(magnitude) && std::isfinite(min) ? magnitude / MaxOf(type)
                                                        : std::numeric_limits<double>::infinity();
}

}  // namespace braid
