// The composition root: everything that the process is made of, in the order in which it is built.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "server/options.h"

namespace braid {

class Server {
 public:
  // Builds and starts everything: devices, models, services, ports, the ready file.
  // INVALID_ARGUMENT or NOT_FOUND for an option that makes no sense here, naming it; UNAVAILABLE
  // for a port that is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const Options& options);
  // Drain() first.
  ~Server();

  // Not ready any more; after the drain delay lets nobody in; waits for what is in flight; has the
  // trainers saved. `hurry` cuts delay and wait short. False if something was lost, requests that
  // took longer than the drain timeout or a checkpoint: then the process has to end without
  // destroying the server, which would wait for them too.
  bool Drain(const absl::Notification& hurry);

 private:
  class Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace braid
