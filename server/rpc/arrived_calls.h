// How many calls have come to whoever answers them, and are not over: what else a connection has
// open is still on its way.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Thread-safe.
class ArrivedCalls {
 public:
  // Those of all of the process's gRPC servers.
  static ArrivedCalls& OfProcess();

  void Add(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t total() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of the connection whose other end calls name `peer`.
  int64_t Of(absl::string_view peer) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  int64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, int64_t> of_peer_ ABSL_GUARDED_BY(mu_);
};

// A call of `peer` that has arrived, until it is destroyed.
class ArrivedCall {
 public:
  explicit ArrivedCall(std::string peer);
  ~ArrivedCall();
  ArrivedCall(const ArrivedCall&) = delete;
  ArrivedCall& operator=(const ArrivedCall&) = delete;

  const std::string& peer() const { return peer_; }

 private:
  const std::string peer_;
};

}  // namespace braid
