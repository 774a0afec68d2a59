// Audit log: one line per audited call, in the log module kAudit.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace braid {

using AuditValue = std::variant<int64_t, std::string>;
// Further fields of a call, by name: {"version", 3},
// {"checkpoint", "step-000000120-sequence-000000131"}.
using AuditDetails = std::vector<std::pair<std::string, AuditValue>>;

// Views of fields of a call. Empty fields do not apply to the call, or to this server.
struct AuditEntry {
  absl::string_view identity;
  absl::string_view peer;
  absl::string_view method;
  absl::string_view model;
  absl::string_view trainer;
  const AuditDetails& details;
  absl::string_view outcome;  // name of the status code
};

// Logs one line in the format of the log: text, or JSON with one member per field. Blocks until the
// line is written, at most one second: while stdout is stuck, audit lines wait like all others.
// Thread-safe.
void LogAudit(const AuditEntry& entry);

}  // namespace braid
