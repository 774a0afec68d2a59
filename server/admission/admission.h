// Limits on requests in flight, and the gate that closes when the server drains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

class Admission;

// One admitted request. Counts as in flight until Release(), and as unreplied until destroyed.
// Movable; thread-compatible.
class Ticket {
 public:
  Ticket() = default;
  Ticket(Ticket&& other) noexcept
      : admission_(std::exchange(other.admission_, nullptr)),
        bytes_(other.bytes_),
        client_(std::move(other.client_)),
        released_(other.released_) {}
  Ticket& operator=(Ticket&& other) noexcept {
    std::swap(admission_, other.admission_);
    std::swap(bytes_, other.bytes_);
    std::swap(client_, other.client_);
    std::swap(released_, other.released_);
    return *this;
  }
  ~Ticket();

  // Counts `bytes` more of the request. RESOURCE_EXHAUSTED, without counting them, beyond a limit,
  // or if they exceed --max_request_bytes by themselves. Requires a ticket of Admit().
  absl::Status Add(size_t bytes);
  // Ends the request's part in the limits before its reply is sent. Idempotent.
  void Release();

 private:
  friend class Admission;
  Ticket(Admission* admission, size_t bytes, std::string client)
      : admission_(admission), bytes_(bytes), client_(std::move(client)) {}

  Admission* admission_ = nullptr;
  size_t bytes_ = 0;
  std::string client_;  // empty: not counted per client
  bool released_ = false;
};

// Thread-safe. Outlives its tickets.
class Admission {
 public:
  struct Limits {
    int64_t requests = 0;
    size_t bytes = 0;
    // Per client; 0: no limit.
    int64_t client_requests = 0;
    size_t client_bytes = 0;
  };

  explicit Admission(Limits limits) : limits_(limits) {}

  // Admits a request of `bytes`. RESOURCE_EXHAUSTED beyond a limit; UNAVAILABLE while the gate is
  // closed. Never blocks. A request that exceeds a limit of bytes by itself is admitted if nothing
  // else is in flight. client: key for the limits per client.
  absl::StatusOr<Ticket> Admit(size_t bytes, std::string client = {}) ABSL_LOCKS_EXCLUDED(mu_);
  size_t max_bytes() const { return limits_.bytes; }
  bool limits_clients() const { return limits_.client_requests > 0 || limits_.client_bytes > 0; }

  // Closes the gate until Open(). Requests fail with "the server " + reason.
  void Close(absl::string_view reason = "is shutting down") ABSL_LOCKS_EXCLUDED(mu_);
  void Open() ABSL_LOCKS_EXCLUDED(mu_);
  // UNAVAILABLE while the gate is closed. For work that is not counted.
  absl::Status CheckOpen() const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until no request is in flight. False after `timeout`.
  bool WaitUntilIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all replies are sent. False after `timeout`.
  bool WaitUntilReplied(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t in_flight() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t bytes_in_flight() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Ticket;
  // Requests in flight of one client.
  struct Client {
    int64_t requests = 0;
    size_t bytes = 0;
  };

  absl::Status Add(size_t bytes, const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckBytes(size_t bytes, int64_t others) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckClientBytes(const Client& client, size_t bytes, int64_t others) const;
  absl::Status CheckClient(const Client& client, size_t bytes) const;
  void Release(size_t bytes, const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);
  void CountReplied() ABSL_LOCKS_EXCLUDED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return requests_ == 0; }
  bool Replied() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return replies_ == 0; }

  const Limits limits_;
  mutable absl::Mutex mu_;
  absl::Status gate_ ABSL_GUARDED_BY(mu_);  // OK: open
  int64_t requests_ ABSL_GUARDED_BY(mu_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Clients with requests in flight.
  absl::flat_hash_map<std::string, Client> clients_ ABSL_GUARDED_BY(mu_);
  int64_t replies_ ABSL_GUARDED_BY(mu_) = 0;  // released, but not sent
};

}  // namespace braid
