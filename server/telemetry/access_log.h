// A line for each call, in the log's module kAccess.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace braid {

// What a call tells of its work, as far as it has any.
struct CallFacts {
  std::string request_id;  // the client's
  int64_t rows = 0;
  int64_t chunks = 0;
  // By name: "queue", "forward".
  absl::InlinedVector<std::pair<std::string, absl::Duration>, 2> phases;
};

struct AccessEntry {
  absl::string_view method;  // without the package; lives as long as the program
  std::string model;
  absl::string_view code;  // as the method
  std::string identity;    // empty: nobody was asked
  std::string peer;
  std::string trace_id;  // of a W3C traceparent; empty: there is none
  absl::Duration duration;
};

// Whether anybody reads them: what is for them alone need not be collected otherwise.
bool AccessLogOn();
// Any thread; waits neither for the disk nor for the line's text.
void LogAccess(AccessEntry entry, CallFacts facts);

// The trace id of a W3C `traceparent`; empty if it is none.
absl::string_view TraceIdOf(absl::string_view traceparent);

}  // namespace braid
