// Checks of the configuration of a loss.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/training/trainer_spec.h"

namespace braid {

enum class LossKind {
  kCrossEntropy,
  kNll,
  kMse,
  kL1,
  kSmoothL1,
  kHuber,
  kBceWithLogits,
  kKlDiv,
  kPoissonNll,
  kGaussianNll,
  kFocal,
  kSigmoidFocal,
  kDice,
  kCosineEmbedding,
  kTripletMargin,
  kCtc,
  kModule,  // a TorchScript module of the client
  kModel,   // computed by the model: the output is the loss
};

// Returns PyTorch's names for the outputs of a loss that takes several, in their order; empty for a
// loss of one output.
std::vector<std::string> OutputRoles(LossKind kind);

// Returns the kind of `spec`, and fills in its defaults except for `output` and `outputs`. `field`:
// its place in the request ("losses[0]"). INVALID_ARGUMENT naming `field`.name, or a parameter that
// is out of range or belongs to another loss.
absl::StatusOr<LossKind> CheckLossSpec(LossMode mode, const std::string& field, LossSpec* spec);

}  // namespace braid
