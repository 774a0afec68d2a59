// Clips the gradients of the whole batch, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_.
//
// The flat gradient is worked on in parts, by several threads or devices:
//   PartialNorm() on each → CombineNorms() → ClipFactor() → ScaleAndClip() on each
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "server/parallel/flat_parameters.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field ("clipping.max_norm") that is out of range.
absl::Status CheckClipping(const ClippingSpec& spec);

// Returns the sum of |g|^norm_type over part `part` of `parts` of the gradients, or with an
// infinite norm_type the largest |g|, as a 0-dim float64 tensor on their device; NaN if a gradient
// is NaN. The same number of parts gives the same bits. Does not wait for the device.
at::Tensor PartialNorm(const FlatParameters& parameters, double norm_type, size_t part,
                       size_t parts);
// Returns the norm, from all parts.
double CombineNorms(const std::vector<double>& partials, double norm_type);
// Returns the factor for gradients of norm `norm`; at most 1.
double ClipFactor(double norm, double max_norm);

// Multiplies the part's gradients by `factor`, then clamps them to ±max_value.
void ScaleAndClip(const FlatParameters& parameters, double factor, std::optional<double> max_value,
                  size_t part, size_t parts);

}  // namespace braid
