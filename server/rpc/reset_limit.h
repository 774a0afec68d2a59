// Ends connections whose clients open calls and take them back without end.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

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

// Of all of the process's gRPC servers, from construction to destruction. gRPC 1.51 has no limit of
// its own, and keeps 20 kB of each such call for as long as more come without a pause
// (CVE-2023-44487).
class ResetLimit {
 public:
  // streams: that a connection may have open.
  explicit ResetLimit(int streams);
  ~ResetLimit();
  ResetLimit(const ResetLimit&) = delete;
  ResetLimit& operator=(const ResetLimit&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Look();
  void LookAtConnections(const std::vector<int64_t>& servers, int64_t fresh);

  const int streams_;

  // Of the thread alone. What had not succeeded when connections were last looked at, on all of
  // them, and on each, by gRPC's ids.
  int64_t total_ = 0;
  absl::flat_hash_map<int64_t, RecentResets> connections_;
  // Not of the clock on the wall, which may be set.
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
