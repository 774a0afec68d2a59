#include "server/training/number_checks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

absl::Status CheckRange(absl::string_view field, double value, bool in_range,
                        absl::string_view expected) {
  if (in_range) {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat(value, " is out of range (expected ", expected, ")"));
}

absl::Status CheckNotNegative(absl::string_view field, double value) {
  return CheckRange(field, value, value >= 0 && std::isfinite(value), "at least 0");
}

absl::Status CheckBelowOne(absl::string_view field, double value) {
  return CheckRange(field, value, value >= 0 && value < 1, "0 to less than 1");
}

absl::Status CheckAtLeast(absl::string_view field, int64_t value, int64_t least) {
  if (value >= least) {
    return absl::OkStatus();
  }
  return InvalidField(field,
                      absl::StrCat(value, " is out of range (expected at least ", least, ")"));
}

std::optional<int64_t> AsCount(double value) {
  constexpr double kMost = 9007199254740992;  // up to here every whole number is a double
  if (value >= 0 && value <= kMost && std::floor(value) == value) {
    return static_cast<int64_t>(value);
  }
  return std::nullopt;
}

}  // namespace braid
