// Status macros, and errors that name the field of a request that is wrong.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// NOLINTBEGIN(bugprone-macro-parentheses): `left` may be a declaration.
#define BRAID_RETURN_IF_ERROR(expression)                               \
  do {                                                                  \
    if (absl::Status braid_status = (expression); !braid_status.ok()) { \
      return braid_status;                                              \
    }                                                                   \
  } while (false)

#define BRAID_CONCAT_INNER(a, b) a##b
#define BRAID_CONCAT(a, b) BRAID_CONCAT_INNER(a, b)

#define BRAID_ASSIGN_OR_RETURN(left, expression) \
  BRAID_ASSIGN_OR_RETURN_IMPL(BRAID_CONCAT(braid_status_or_, __LINE__), left, expression)

#define BRAID_ASSIGN_OR_RETURN_IMPL(result, left, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) {                                         \
    return std::move(result).status();                        \
  }                                                           \
  left = *std::move(result)

// NOLINTEND(bugprone-macro-parentheses)

namespace braid {

inline constexpr absl::string_view kFieldPayload = "braid/field";

// INVALID_ARGUMENT for `field` (a path in the request: "inputs[0].shape"); the message begins with
// it.
inline absl::Status InvalidField(absl::string_view field, absl::string_view what) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

// The field that InvalidField() named, if it made `status`.
inline std::optional<std::string> InvalidFieldOf(const absl::Status& status) {
  if (const auto field = status.GetPayload(kFieldPayload)) {
    return std::string(*field);
  }
  return std::nullopt;
}

}  // namespace braid
