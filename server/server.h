// The composition root: everything that the process is made of, in the order in which it is built.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
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

  // Not ready any more; lets nobody in; waits for what is in flight. False if that takes longer
  // than the drain timeout: then the process has to end without destroying the server, which would
  // wait for it too.
  bool Drain();

 private:
  class Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace braid
