// Errors about a field of a request that come from its contents.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"

namespace braid {

// Returns "<field>: <message>" with the code of `status`, INVALID_ARGUMENT as InvalidField() does.
inline absl::Status InField(absl::string_view field, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  if (absl::IsInvalidArgument(status)) {
    return InvalidField(field, status.message());
  }
  return {status.code(), absl::StrCat(field, ": ", status.message())};
}

}  // namespace braid
