// One unary call: deadline, message limit, resending, and gRPC's status as Abseil's. Internal.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace braid::client {

struct CallPolicy {
  // For the whole call, resending included; infinite: none.
  absl::Duration timeout = absl::InfiniteDuration();
  // How often the request is sent, at most, while the answer is UNAVAILABLE.
  int max_attempts = 1;
  // Pauses between attempts: the first, doubled each time up to the second.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);
  // No attempt begins later than this after the first one failed.
  absl::Duration patience = absl::InfiniteDuration();
};

// The pause after so many attempts, at least 1, have failed.
absl::Duration Backoff(const CallPolicy& policy, int attempts);

// The same code and message. The server's google.rpc.Status, where it sent one, serialized, is the
// payload "type.googleapis.com/google.rpc.Status".
absl::Status ToAbsl(const grpc::Status& status);

// The same code and payloads.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

void SetDeadline(grpc::ClientContext& context, absl::Time deadline);

// INVALID_ARGUMENT if a request of this size is larger than gRPC can send (2 GiB less one byte).
absl::Status CheckSendable(size_t bytes);

// Calls `attempt`, each time with a context of its own, as the policy says. Returns the last
// attempt's status; `attempts`, unless null, is how many there were.
absl::Status Attempt(const CallPolicy& policy,
                     absl::FunctionRef<grpc::Status(grpc::ClientContext*)> attempt,
                     int* attempts = nullptr);

// `(stub.*method)(request)`, as the policy says.
template <typename Stub, typename Request, typename Reply>
absl::Status CallInto(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                      const Request& request, const CallPolicy& policy, Reply* reply,
                      int* attempts = nullptr) {
  if (absl::Status status = CheckSendable(request.ByteSizeLong()); !status.ok()) return status;
  return Attempt(
      policy, [&](grpc::ClientContext* context) { return (stub.*method)(context, request, reply); },
      attempts);
}

// As above, with the reply as the result.
template <typename Stub, typename Request, typename Reply>
absl::StatusOr<Reply> Call(Stub& stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Reply*),
                           const Request& request, const CallPolicy& policy) {
  Reply reply;
  absl::Status status = CallInto(stub, method, request, policy, &reply);
  if (!status.ok()) return status;
  return reply;
}

}  // namespace braid::client
