// Ends connections whose clients open calls and take them back without end.
#pragma once

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

// How many calls of one connection its client has open, or has taken back of late. gRPC tells no
// difference while they come without a pause. Thread-compatible.
class RecentResets {
 public:
  // Beside those that may be open at once: more than time out together in an overload.
  static constexpr double kAtOnce = 2048;
  static constexpr double kEachSecond = 2048;

  // `total`: that did not succeed since the connection began, of which at most `fresh` since the
  // last call, `since` ago. Whether they are too many, where `streams` may be open: said once.
  bool TooMany(int64_t total, int64_t fresh, absl::Duration since, int streams);

 private:
  int64_t total_ = 0;
  double recent_ = 0;
  bool said_ = false;
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

  const int streams_;

  // Of the thread alone. What had not succeeded when connections were last looked at, on all of
  // them, and on each, by gRPC's ids.
  int64_t total_ = 0;
  absl::flat_hash_map<int64_t, RecentResets> connections_;
  absl::Time looked_;

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
