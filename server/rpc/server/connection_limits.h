// How long a connection may last, how much it may have open, and what may come on it.
#pragma once

#include <cstddef>
#include <limits>

#include "absl/time/time.h"

namespace braid {

struct ConnectionLimits {
  int streams = 1024;
  // Then its client is told to make another one, and calls on it go on until the grace is over.
  absl::Duration age = absl::InfiniteDuration();
  absl::Duration grace = absl::InfiniteDuration();
  // Without a call; then it is closed.
  absl::Duration idle = absl::InfiniteDuration();
  // Accepts compressed messages. gRPC checks `message_bytes` only after it has unpacked one.
  bool compression = true;
  // Largest message.
  int message_bytes = std::numeric_limits<int>::max();
  // Of all messages of all connections that are on their way: more than one of them.
  size_t buffer_bytes = size_t{4} << 30;
};

}  // namespace braid
