// Which connections have clients that begin calls and do not send them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace braid {

// Of all connections together. A call takes 12 kB from its first byte on, and is counted by no
// other limit before all of its message is there; then it is refused or answered at once. So few
// are on their way: what the network holds, and large messages. Thread-compatible.
class ArrivingLimit {
 public:
  // So many may be for a while, but this many times as many at no time.
  static constexpr int64_t kAtOnce = 4;
  static constexpr std::chrono::seconds kPatience{10};

  // `most` calls may be on their way for as long as they like.
  explicit ArrivingLimit(int64_t most) : most_(most) {}

  struct Connection {
    int64_t id = 0;
    int64_t arriving = 0;  // calls that are on their way now
  };

  // `connections`: all that there are `now`. Which of these are to be ended, by their place: those
  // with most, until the others keep to the limit. One that was to be ended before is taken to be
  // on its way out for a while, though gRPC may still be at it, call by call.
  std::vector<size_t> TooMany(const std::vector<Connection>& connections,
                              std::chrono::steady_clock::time_point now);

 private:
  const int64_t most_;
  std::optional<std::chrono::steady_clock::time_point> since_;  // there have been more
  // By their ids, since when.
  absl::flat_hash_map<int64_t, std::chrono::steady_clock::time_point> on_their_way_out_;
};

}  // namespace braid
