// Values of metrics at one training step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace braid {

// `name`: printable, without commas and quotes, such as "evaluation/loss".
struct TrackedValue {
  std::string name;
  double value = 0;  // may be NaN or infinite
};

struct TrackedValues {
  int64_t step = 0;
  absl::Time time;
  std::vector<TrackedValue> values;
};

}  // namespace braid
