// Limits of client connections.
#pragma once

#include <cstddef>
#include <limits>

#include "absl/time/time.h"

namespace braid {

struct ConnectionLimits {
  // Concurrent calls per connection.
  int streams = 1024;
  // After `age`, the client is asked to reconnect; calls may continue for `grace`.
  absl::Duration age = absl::InfiniteDuration();
  absl::Duration grace = absl::InfiniteDuration();
  // A connection without calls is closed after this time.
  absl::Duration idle = absl::InfiniteDuration();
  // Accepts compressed messages. gRPC checks `message_bytes` only after decompression.
  bool compression = true;
  // Largest message received.
  int message_bytes = std::numeric_limits<int>::max();
  // Buffers of all connections together. Must exceed message_bytes.
  size_t buffer_bytes = size_t{4} << 30;
};

}  // namespace braid
