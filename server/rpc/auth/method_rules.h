// What each method of each service needs of its caller.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace braid {

enum class Need {
  kOpen,    // nothing: probes have no credentials
  kAnyone,  // an identity, whatever its roles
  kSee,     // any role for the model; a request that names none is told of those
  kInfer,
  kTrain,
  kAdmin,
};

// What a request is about; a role has to be for that model, or for the trainer's model.
enum class Subject { kServer, kModel, kTrainer };

struct MethodRule {
  absl::string_view method;  // without package and service
  Need need = Need::kAdmin;
  Subject subject = Subject::kServer;
  // Whether the log always says who called it, and with what outcome: what changes the server or
  // what it serves, or hands weights out. What else needs a role to train is told only where
  // callers have identities.
  bool audited = false;
};

// The rule of a method; one that nobody has thought of is for admins.
const MethodRule& RuleOf(absl::string_view method);

// All that there are.
const std::vector<MethodRule>& MethodRules();

}  // namespace braid
