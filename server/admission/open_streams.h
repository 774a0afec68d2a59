// Calls that last until their client, or the server, has had enough: they take no place among the
// requests in flight while nothing of them is to be done.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // Takes nothing more, answers what it has, and ends with `why`. Any thread.
  virtual void Leave(const absl::Status& why) = 0;
};

// Thread-safe. Outlives its streams.
class OpenStreams {
 public:
  // `most`: of one client; 0: no limit.
  explicit OpenStreams(int64_t most) : most_(most) {}

  // For a stream that begins; `client`: whose it is, if clients have a limit. An error is how it is
  // to end: RESOURCE_EXHAUSTED, or what Close() was given.
  absl::Status Add(const std::shared_ptr<OpenStream>& stream, const std::string& client)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Once it is over. One that was not added may be given.
  void Remove(const OpenStream* stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Has all of them, and those that come, leave. Called once.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until none is open; false if that takes longer than `timeout`.
  bool WaitUntilOver(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::weak_ptr<OpenStream> stream;
    std::string client;  // empty: it is not counted
  };

  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return streams_.empty(); }

  const int64_t most_;
  absl::Mutex mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);  // OK: open
  absl::flat_hash_map<const OpenStream*, Entry> streams_ ABSL_GUARDED_BY(mu_);
  // How many each has, of those that have any.
  absl::flat_hash_map<std::string, int64_t> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
