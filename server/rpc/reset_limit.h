// Which connections have clients that open calls and take them back without end.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/rpc/channelz.h"

namespace braid {

// How many calls of one connection its client has open, or has taken back of late. gRPC tells no
// difference while they come without a pause. Thread-compatible.
class RecentResets {
 public:
  // Beside those that may be open at once: more than time out together in an overload.
  static constexpr double kAtOnce = 2048;
  static constexpr double kEachSecond = 2048;

  // `total`: that did not succeed since the connection began, of which at most `fresh` since the
  // last call, `since` ago. Whether they are too many, where `streams` may be open.
  bool TooMany(int64_t total, int64_t fresh, std::chrono::duration<double> since, int streams);

 private:
  int64_t total_ = 0;
  double recent_ = 0;
};

// Of all of the process's gRPC servers. gRPC 1.51 has no limit of its own, and keeps 20 kB of each
// such call for as long as more come without a pause (CVE-2023-44487). Thread-compatible.
class ResetLimit {
 public:
  // streams: that a connection may have open.
  explicit ResetLimit(int streams) : streams_(streams) {}

  // Whether the servers' counts are a reason to look at their connections.
  bool WorthLooking(const std::vector<CountedServer>& servers);
  // Those of `connections`, all of the servers', that have too many.
  std::vector<CountedConnection> TooMany(const std::vector<CountedServer>& servers,
                                         const std::vector<CountedConnection>& connections);

 private:
  const int streams_;

  // What had not succeeded when connections were last looked at, on all of them, and on each, by
  // gRPC's ids.
  int64_t total_ = 0;
  absl::flat_hash_map<int64_t, RecentResets> connections_;
  // Not of the clock on the wall, which may be set.
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace braid
