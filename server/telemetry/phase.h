// Phases of work on a device.
#pragma once

#include "absl/strings/string_view.h"

namespace braid {

enum class Phase {
  kLoad,
  kCopyIn,
  kForward,
  kLoss,
  kBackward,
  kReduce,
  kUpdate,
  kBroadcast,
  kCopyOut,
};
inline constexpr int kPhases = 9;
absl::string_view PhaseName(Phase phase);

}  // namespace braid
