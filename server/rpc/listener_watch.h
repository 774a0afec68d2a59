// Whether the connections that come to a port are accepted. gRPC does not say when it has given a
// listener up: the kernel goes on to take connections for it, which nobody ever hears of.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace braid {

// Thread-compatible.
class ListenerWatch {
 public:
  // After so many looks at connections that wait, none of which has seen an accept4(), nobody is
  // there to accept. By looks, not by time: a process that was stopped for a while is none that
  // accepts nothing.
  static constexpr int kLooks = 10;

  // Of the sockets that listen at `port` now.
  explicit ListenerWatch(int port);

  // OK, or UNAVAILABLE and what is wrong. `accept_calls`: how often somebody has tried to accept at
  // the port, ever.
  absl::Status Look(int64_t accept_calls);

 private:
  const int port_;
  const std::vector<int> listeners_;
  int64_t accept_calls_ = 0;
  int in_vain_ = 0;
};

}  // namespace braid
