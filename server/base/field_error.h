// Functions that add a field to an error, or extend the one that it names.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"

namespace braid {

// Prepends "<field>: " to the message and keeps the code. For INVALID_ARGUMENT, the result is an
// InvalidField() error. OK stays OK.
inline absl::Status WithField(absl::string_view field, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  if (absl::IsInvalidArgument(status)) {
    return InvalidField(field, status.message());
  }
  return {status.code(), absl::StrCat(field, ": ", status.message())};
}

// Prepends `prefix` to the field of an InvalidField() error: "name" with the prefix "spec." becomes
// "spec.name". Returns other errors as they are.
inline absl::Status PrefixField(absl::string_view prefix, const absl::Status& status) {
  const std::optional<std::string> field = InvalidFieldOf(status);
  if (!field) {
    return status;
  }
  return InvalidField(absl::StrCat(prefix, *field),
                      absl::StripPrefix(status.message(), absl::StrCat(*field, ": ")));
}

}  // namespace braid
