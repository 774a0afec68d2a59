// Checks of numbers in requests and checkpoints.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// Returns INVALID_ARGUMENT naming `field` unless `in_range`. `expected` describes the range.
absl::Status CheckRange(absl::string_view field, double value, bool in_range,
                        absl::string_view expected);

// Checks that `value` is finite and at least 0.
absl::Status CheckNotNegative(absl::string_view field, double value);
// Checks that `value` is in [0, 1).
absl::Status CheckBelowOne(absl::string_view field, double value);
absl::Status CheckAtLeast(absl::string_view field, int64_t value, int64_t least);

// Returns a count read from a checkpoint; nullopt unless it is whole and not negative.
std::optional<int64_t> AsCount(double value);

}  // namespace braid
