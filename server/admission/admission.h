// Who is let in: limits on what is in flight, and the gate that closes when the server drains.
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

// A request's place among those in flight, given back when it is destroyed at the latest. Movable.
class Ticket {
 public:
  Ticket() = default;
  Ticket(Ticket&& other) noexcept
      : admission_(std::exchange(other.admission_, nullptr)),
        bytes_(other.bytes_),
        client_(std::move(other.client_)),
        given_back_(other.given_back_) {}
  Ticket& operator=(Ticket&& other) noexcept {
    std::swap(admission_, other.admission_);
    std::swap(bytes_, other.bytes_);
    std::swap(client_, other.client_);
    std::swap(given_back_, other.given_back_);
    return *this;
  }
  ~Ticket();

  // Gives the place back while the reply is on its way: until the ticket is destroyed.
  void GiveBack();

 private:
  friend class Admission;
  Ticket(Admission* admission, size_t bytes, std::string client)
      : admission_(admission), bytes_(bytes), client_(std::move(client)) {}

  Admission* admission_ = nullptr;
  size_t bytes_ = 0;
  std::string client_;  // empty: it is not counted
  bool given_back_ = false;
};

// Thread-safe. Outlives its tickets.
class Admission {
 public:
  struct Limits {
    int64_t requests = 0;
    size_t bytes = 0;
    // Of one client; 0: no limit of its own.
    int64_t client_requests = 0;
    size_t client_bytes = 0;
  };

  explicit Admission(Limits limits) : limits_(limits) {}

  // A place for a request of `bytes`. RESOURCE_EXHAUSTED, at once, if there is none; UNAVAILABLE
  // while the gate is closed. A request larger than a limit of bytes is let in when it is alone.
  // `client`: whose it is, if clients have a limit.
  absl::StatusOr<Ticket> Admit(size_t bytes, std::string client = {}) ABSL_LOCKS_EXCLUDED(mu_);
  size_t most_bytes() const { return limits_.bytes; }
  bool limits_clients() const { return limits_.client_requests > 0 || limits_.client_bytes > 0; }

  // Lets nobody in any more, as the server `does` something else, until Open().
  void Close(absl::string_view does = "is shutting down") ABSL_LOCKS_EXCLUDED(mu_);
  void Open() ABSL_LOCKS_EXCLUDED(mu_);
  // UNAVAILABLE while the gate is closed: for what takes no place.
  absl::Status CheckOpen() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until nothing is in flight; false if that takes longer than `timeout`.
  bool WaitUntilIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for the replies that are on their way.
  bool WaitUntilReplied(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t in_flight() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t bytes_in_flight() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Ticket;
  // What of it is in flight.
  struct Client {
    int64_t requests = 0;
    size_t bytes = 0;
  };

  absl::Status CheckClient(const Client& client, size_t bytes) const;
  void GiveBack(size_t bytes, const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);
  void CountReplied() ABSL_LOCKS_EXCLUDED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return requests_ == 0; }
  bool Replied() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return replies_ == 0; }

  const Limits limits_;
  mutable absl::Mutex mu_;
  absl::Status gate_ ABSL_GUARDED_BY(mu_);  // OK: open
  int64_t requests_ ABSL_GUARDED_BY(mu_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Those that have any.
  absl::flat_hash_map<std::string, Client> clients_ ABSL_GUARDED_BY(mu_);
  int64_t replies_ ABSL_GUARDED_BY(mu_) = 0;  // on their way
};

}  // namespace braid
