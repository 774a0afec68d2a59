// Composition root: builds all parts of the process and drains them.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "server/options.h"

namespace braid {

// Used by the main thread.
class Server {
 public:
  // Builds and starts everything: devices, models, services, ports, the ready file. Blocks until
  // the models are loaded. INVALID_ARGUMENT or NOT_FOUND, naming the flag, for an invalid option;
  // UNAVAILABLE for a port in use.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const Options& options);
  // Call Drain() first.
  ~Server();

  // Reports not ready, rejects requests after the drain delay, waits for those in flight, and saves
  // the trainers. `hurry` shortens delay and wait. Returns false if requests exceeded the drain
  // timeout or a checkpoint failed; then exit without destroying the server, whose destructor would
  // block on them.
  bool Drain(const absl::Notification& hurry);

 private:
  class Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace braid
