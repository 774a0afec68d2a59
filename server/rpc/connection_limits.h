// How long a connection may last, how much it may have open, and what may come on it.
#pragma once

#include "absl/time/time.h"

namespace braid {

struct ConnectionLimits {
  int streams = 1024;
  // Then its client is told to make another one, and calls on it go on until the grace is over.
  absl::Duration age = absl::InfiniteDuration();
  absl::Duration grace = absl::InfiniteDuration();
  // Whether messages may be compressed: gRPC unpacks one before it looks how large it gets.
  bool compression = true;
};

}  // namespace braid
