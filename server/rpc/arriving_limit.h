// Which connections have clients that begin calls and do not send them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

  // `arriving`: how many calls are on their way now, `now`, on each connection. Which of these are
  // to be ended, by their place: those with most, until the others keep to the limit.
  std::vector<size_t> TooMany(const std::vector<int64_t>& arriving,
                              std::chrono::steady_clock::time_point now);

 private:
  const int64_t most_;
  std::optional<std::chrono::steady_clock::time_point> since_;  // there have been more
};

}  // namespace braid
