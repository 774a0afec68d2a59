// Who a client is, and what it may do: roles, with all models or with one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// `admin` may do everything; the others imply nothing.
enum class Role { kInfer, kTrain, kAdmin };
absl::string_view RoleName(Role role);

struct Grant {
  Role role = Role::kInfer;
  std::string model;  // empty: every model
};

// Immutable once it is shared.
struct Identity {
  std::string name;
  std::vector<Grant> grants;

  // Whether it has `role`, or is an admin, for every model; for `model`; for at least one.
  bool MayAll(Role role) const;
  bool May(Role role, absl::string_view model) const;
  bool MaySome(Role role) const;
  // Whether it has any role for `model`.
  bool Sees(absl::string_view model) const;
};

// Reads "infer:resnet18,train"; a model's name has %XX for what divides a line. INVALID_ARGUMENT
// with what is wrong and what would be right.
absl::StatusOr<std::vector<Grant>> ParseGrants(absl::string_view text);

}  // namespace braid
