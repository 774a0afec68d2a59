// A line for each call that is audited, in the log's module kAudit, whose only writer this is.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace braid {

using AuditValue = std::variant<int64_t, std::string>;
// What a call asked for or did beside whom it was about, by name: {"version", 3},
// {"checkpoint", "step-000000120-sequence-000000131"}.
using AuditDetails = std::vector<std::pair<std::string, AuditValue>>;

// All of it lives until LogAudit() returns; what is empty there is not, or nobody asks.
struct AuditEntry {
  absl::string_view identity;
  absl::string_view peer;
  absl::string_view method;
  absl::string_view model;
  absl::string_view trainer;
  const AuditDetails& details;
  absl::string_view outcome;  // a code's name
};

// Any thread; the line is written when it returns, in the format that the log has. In JSON each
// part of it is a member of the line's object, as in the access log.
void LogAudit(const AuditEntry& entry);

}  // namespace braid
