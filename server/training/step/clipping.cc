#include "server/training/step/clipping.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ATen/Dispatch.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/max.h"
#include "ATen/ops/scalar_tensor.h"
#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/parallel/flat_slice.h"
#include "server/training/number_checks.h"

namespace braid {
namespace {

// Returns the larger number, or NaN if one is NaN.
double Larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

double Fold(double a, double b, double norm_type) {
  return std::isinf(norm_type) ? Larger(a, b) : a + b;
}

// Folds `term` of every element, from 0, in several independent chains so that the processor does
// not wait for one sum before it begins the next. The size of a slice is a multiple of the chains.
template <typename T, typename Term, typename Join>
double Folded(const T* data, int64_t size, Term term, Join fold) {
  constexpr size_t kChains = 8;
  std::array<double, kChains> chains = {};
  for (const T* const end = data + size; data != end; data += kChains) {
    for (size_t c = 0; c < kChains; ++c) {
      chains[c] = fold(chains[c], term(static_cast<double>(data[c])));
    }
  }
  double total = 0;
  for (const double chain : chains) {
    total = fold(total, chain);
  }
  return total;
}

template <typename T>
double HostNorm(const T* data, int64_t size, double norm_type) {
  const auto plus = [](double a, double b) { return a + b; };
  const auto absolute = [](double g) { return std::abs(g); };
  if (std::isinf(norm_type)) {
    return Folded(data, size, absolute, Larger);
  }
  if (norm_type == 2) {
    return Folded(
        data, size, [](double g) { return g * g; }, plus);
  }
  if (norm_type == 1) {
    return Folded(data, size, absolute, plus);
  }
  return Folded(
      data, size, [norm_type](double g) { return std::pow(std::abs(g), norm_type); }, plus);
}

double HostNorm(const at::Tensor& gradients, double norm_type) {
  double norm = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gradients.scalar_type(), "norm", [&] {
    norm = HostNorm(gradients.const_data_ptr<scalar_t>(), gradients.numel(), norm_type);
  });
  return norm;
}

at::Tensor DeviceNorm(const at::Tensor& gradients, double norm_type) {
  constexpr int64_t kBlock = 1 << 22;  // elements copied to float64 at a time
  at::Tensor norm = at::zeros({}, gradients.options().dtype(at::kDouble));
  for (const at::Tensor& block : gradients.split(kBlock)) {
    const at::Tensor absolute = block.to(at::kDouble).abs();
    norm = std::isinf(norm_type) ? at::max(norm, absolute.max())
                                 : norm.add(absolute.pow(norm_type).sum());
  }
  return norm;
}

// Returns the largest finite number.
double Largest(c10::ScalarType type) {
  double largest = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "largest", [&] {
    largest = static_cast<double>(std::numeric_limits<scalar_t>::max());
  });
  return largest;
}

at::Tensor PartOf(const at::Tensor& flat, size_t part, size_t parts) {
  const Slice slice = SliceOf(flat, part, parts);
  return flat.narrow(0, slice.begin, slice.size());
}

}  // namespace

absl::Status CheckClipping(const ClippingSpec& spec) {
  const double max_norm = spec.max_norm.value_or(1);
  const double max_value = spec.max_value.value_or(1);
  BRAID_RETURN_IF_ERROR(CheckRange("clipping.max_norm", max_norm, max_norm > 0, "above 0"));
  BRAID_RETURN_IF_ERROR(
      CheckRange("clipping.norm_type", spec.norm_type, spec.norm_type >= 1, "at least 1"));
  return CheckRange("clipping.max_value", max_value, max_value > 0, "above 0");
}

at::Tensor PartialNorm(const FlatParameters& parameters, double norm_type, size_t part,
                       size_t parts) {
  const c10::AutoGradMode no_grad(false);
  double on_host = 0;
  at::Tensor norm;
  for (const at::Tensor& flat : parameters.gradients()) {
    const at::Tensor gradients = PartOf(flat, part, parts);
    if (gradients.numel() == 0) {
      continue;
    }
    if (gradients.is_cpu()) {
      on_host = Fold(on_host, HostNorm(gradients, norm_type), norm_type);
      continue;
    }
    const at::Tensor next = DeviceNorm(gradients, norm_type);
    norm = !norm.defined() ? next : std::isinf(norm_type) ? at::max(norm, next) : norm.add(next);
  }
  return norm.defined() ? norm : at::scalar_tensor(on_host, at::kDouble);
}

double CombineNorms(const std::vector<double>& partials, double norm_type) {
  double total = 0;
  for (const double partial : partials) {
    total = Fold(total, partial, norm_type);
  }
  return std::isinf(norm_type) ? total : std::pow(total, 1 / norm_type);
}

double ClipFactor(double norm, double max_norm) { return std::min(max_norm / (norm + 1e-6), 1.0); }

void ScaleAndClip(const FlatParameters& parameters, double factor, std::optional<double> max_value,
                  size_t part, size_t parts) {
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& flat : parameters.gradients()) {
    const at::Tensor gradients = PartOf(flat, part, parts);
    if (factor != 1) {
      gradients.mul_(factor);
    }
    if (max_value) {
      const double most = std::min(*max_value, Largest(gradients.scalar_type()));
      gradients.clamp_(-most, most);
    }
  }
}

}  // namespace braid
