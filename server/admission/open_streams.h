// Registry of open streaming calls. Idle streams do not count as requests in flight, but a drain
// must end them.
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
  // Stops reading, replies to the received messages, and ends with `status`. Thread-safe.
  virtual void BeginClose(const absl::Status& status) = 0;
};

// Thread-safe. Outlives its streams.
class OpenStreams {
 public:
  // max_per_client: 0 for no limit.
  explicit OpenStreams(int64_t max_per_client) : max_per_client_(max_per_client) {}

  // Registers a stream. client: key for the limit per client. On error the caller ends the stream
  // with it: RESOURCE_EXHAUSTED beyond the limit, or the status given to Close().
  absl::Status Add(const std::shared_ptr<OpenStream>& stream, const std::string& client)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Unregisters a stream that has ended. Ignores unknown streams.
  void Remove(const OpenStream* stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all streams, and rejects new ones, with `status`. Call once.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until no stream is open. False after `timeout`.
  bool WaitUntilEmpty(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::weak_ptr<OpenStream> stream;
    std::string client;  // empty: not counted per client
  };

  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return streams_.empty(); }

  const int64_t max_per_client_;
  absl::Mutex mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);  // OK: open
  absl::flat_hash_map<const OpenStream*, Entry> streams_ ABSL_GUARDED_BY(mu_);
  // Open streams per client.
  absl::flat_hash_map<std::string, int64_t> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
