// Status macros, and errors that name the invalid field of a request.
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

// Returns the INVALID_ARGUMENT error "<field>: <what>". `field` is a path in the request, for
// example "inputs[0].shape", which is also kept as a payload.
inline absl::Status InvalidField(absl::string_view field, absl::string_view what) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

// Returns the field if InvalidField() created `status`.
inline std::optional<std::string> InvalidFieldOf(const absl::Status& status) {
  if (const auto field = status.GetPayload(kFieldPayload)) {
    return std::string(*field);
  }
  return std::nullopt;
}

}  // namespace braid
