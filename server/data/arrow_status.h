// Converts Arrow errors to absl::Status.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "arrow/result.h"
#include "arrow/status.h"

namespace braid {

// Returns OK or the error "cannot <action> '<path>': <Arrow's message>". RESOURCE_EXHAUSTED if
// memory or the disk is exhausted, UNIMPLEMENTED for features that Arrow lacks, else DATA_LOSS or
// the status of the system call that failed.
absl::Status FromArrow(const arrow::Status& status, absl::string_view action,
                       absl::string_view path);

template <typename T>
absl::StatusOr<T> FromArrow(arrow::Result<T> result, absl::string_view action,
                            absl::string_view path) {
  if (!result.ok()) {
    return FromArrow(result.status(), action, path);
  }
  return std::move(result).ValueUnsafe();
}

}  // namespace braid
