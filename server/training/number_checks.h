// Checks of the numbers in a request, and in a checkpoint.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// INVALID_ARGUMENT naming `field` unless `in_range`; `expected` says what would be.
absl::Status CheckRange(absl::string_view field, double value, bool in_range,
                        absl::string_view expected);

// Finite and at least 0.
absl::Status CheckNotNegative(absl::string_view field, double value);
// In [0, 1).
absl::Status CheckBelowOne(absl::string_view field, double value);
absl::Status CheckAtLeast(absl::string_view field, int64_t value, int64_t least);

// A number of a checkpoint, if it counts something: whole and not negative.
std::optional<int64_t> AsCount(double value);

}  // namespace braid
