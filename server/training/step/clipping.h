// Clips the gradients of the whole batch, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_.
//
// The flat gradient is worked on in parts, by several threads or devices:
//   PartialNorm() on each → CombineNorms() → ClipFactor() → ScaleAndClip() on each
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/parallel/flat_parameters.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field ("clipping.max_norm") that is out of range.
absl::Status CheckClipping(const ClippingSpec& spec);

// Of part `part` of `parts` of the gradients: the sum of |g|^norm_type, or with an infinite
// norm_type the largest |g|; not a number if a gradient is none. Adds up in float64; for the same
// number of parts the same bits. Waits for the device.
double PartialNorm(const FlatParameters& parameters, double norm_type, size_t part, size_t parts);
// The norm, from all parts.
double CombineNorms(const std::vector<double>& partials, double norm_type);
// What gradients of norm `norm` are multiplied by; at most 1.
double ClipFactor(double norm, double max_norm);

// The part's gradients times `factor`, then cut off at ±max_value.
void ScaleAndClip(const FlatParameters& parameters, double factor, std::optional<double> max_value,
                  size_t part, size_t parts);

}  // namespace braid
