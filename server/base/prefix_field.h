// Field of an error, as the caller's request has it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"

namespace braid {

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
