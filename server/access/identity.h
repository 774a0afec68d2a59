// Identity of a client and its roles, for all models or for one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// kAdmin includes the other roles. kInfer and kTrain are independent.
enum class Role { kInfer, kTrain, kAdmin };
absl::string_view RoleName(Role role);

struct Grant {
  Role role = Role::kInfer;
  std::string model;  // empty: every model
};

// Immutable once shared.
struct Identity {
  std::string name;
  std::vector<Grant> grants;

  // True if it has `role`, or is an admin: for all models, for `model`, or for at least one model.
  bool MayAll(Role role) const;
  bool May(Role role, absl::string_view model) const;
  bool MaySome(Role role) const;
  // True if it has any role for `model`.
  bool Sees(absl::string_view model) const;
};

// Parses "infer:resnet18,train". Commas, spaces and '%' in a model's name are written as %XX.
// INVALID_ARGUMENT with the expected form.
absl::StatusOr<std::vector<Grant>> ParseGrants(absl::string_view text);

}  // namespace braid
