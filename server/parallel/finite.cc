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

double LargestOf(at::ScalarType type) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "LargestOf", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::max());
  });
}

struct Range {
  double least;
  double most;
};

// Not numbers, if an element is none. One transfer from a GPU.
Range RangeOf(const at::Tensor& values) {
  const auto [least, most] = at::aminmax(values);
  if (values.is_cpu()) {
    return {least.item<double>(), most.item<double>()};
  }
  const at::Tensor both = at::stack({least, most}).cpu();
  return {both[0].item<double>(), both[1].item<double>()};
}

}  // namespace

double RangeShare(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  if (values.numel() == 0) {
    return 0;
  }
  const auto [least, most] = RangeOf(values);
  const double magnitude = std::max(std::abs(least), std::abs(most));
  return std::isfinite(magnitude) && std::isfinite(least)
             ? magnitude / LargestOf(values.scalar_type())
             : std::numeric_limits<double>::infinity();
}

}  // namespace braid
