// What a client may ask of a loss.
#pragma once

#include <string>

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
  kModule,  // a TorchScript module of the client
  kModel,   // the model computes it: what it takes is the loss
};

// The kind of `spec`, which is at `field` of the request ("losses[0]") and gets its defaults filled
// in, but for `output`. INVALID_ARGUMENT naming `field`.name, or the parameter that is out of range
// or another loss's.
absl::StatusOr<LossKind> CheckLossSpec(LossMode mode, const std::string& field, LossSpec* spec);

}  // namespace braid
