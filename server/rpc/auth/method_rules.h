// The permission that each RPC method needs.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace braid {

enum class Need {
  kOpen,    // no credentials, for probes
  kAnyone,  // any identity
  kSee,     // any role for the model; without a model, results are filtered
  kInfer,
  kTrain,
  kAdmin,
};

// Subject of a request. The role must cover that model, or the trainer's model.
enum class Subject { kServer, kModel, kTrainer };

struct MethodRule {
  absl::string_view method;  // without package and service
  Need need = Need::kAdmin;
  Subject subject = Subject::kServer;
  // Always audited: methods that change the server or what it serves, or return weights or data.
  // Other methods that need the train role are audited only with authentication.
  bool audited = false;
};

// Returns the rule of a method. Unknown methods need an admin.
const MethodRule& RuleOf(absl::string_view method);

// All rules.
absl::Span<const MethodRule> MethodRules();

}  // namespace braid
