// Access log: one line per call, in the log module kAccess.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace braid {

// Facts that a handler reports about its call. Empty and zero fields are omitted from the line.
struct CallFacts {
  std::string request_id;  // set by the client
  int64_t rows = 0;
  int64_t chunks = 0;
  // Time of each phase, for example "queue" or "forward".
  absl::InlinedVector<std::pair<std::string, absl::Duration>, 2> phases;
};

struct AccessEntry {
  absl::string_view method;  // without the package
  std::string model;
  absl::string_view code;  // name of the status code
  std::string identity;    // empty without authentication
  std::string peer;
  std::string trace_id;  // from the W3C traceparent header; empty if there is none
  absl::Duration duration;
};

// Returns true if the access log is on. Facts that only the log needs are not collected otherwise.
bool AccessLogOn();
// Logs one call in the format of the log. Thread-safe; does not block.
void LogAccess(const AccessEntry& entry, const CallFacts& facts);

// Returns the trace ID of a W3C `traceparent` header, or an empty string if it is invalid.
absl::string_view TraceIdOf(absl::string_view traceparent);

}  // namespace braid
