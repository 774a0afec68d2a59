// Unary gRPC calls with a deadline, a size check and retries. Internal.
//
// All functions block until the call has ended. They are thread-safe: they keep no state.
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
  // Limits the whole call, retries included.
  absl::Duration timeout = absl::InfiniteDuration();
  // Maximum number of attempts. Only UNAVAILABLE is retried.
  int max_attempts = 1;
  // Pause before the first retry. It doubles with each retry, up to `max_backoff`.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);
  // Time after the first failed attempt during which a retry may start.
  absl::Duration retry_window = absl::InfiniteDuration();
};

// Returns the pause after `attempts` failed attempts (at least 1).
absl::Duration Backoff(const CallPolicy& policy, int attempts);

// Converts a gRPC status; code and message stay. If the server sent a google.rpc.Status, the result
// carries it, serialized, as the payload "type.googleapis.com/google.rpc.Status".
absl::Status ToAbsl(const grpc::Status& status);

// Copies `status`, with its payloads, and replaces its message.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

void SetDeadline(grpc::ClientContext& context, absl::Time deadline);

// Returns INVALID_ARGUMENT if `bytes` exceeds gRPC's limit for a message (2 GiB less one byte).
absl::Status CheckSendable(size_t bytes);

// Calls `attempt` until it succeeds or `policy` allows no more retries. Each attempt gets a new
// context. Returns the last attempt's status. Stores the number of attempts in `attempts`, unless
// that is null.
absl::Status CallWithRetry(const CallPolicy& policy,
                           absl::FunctionRef<grpc::Status(grpc::ClientContext*)> attempt,
                           int* attempts = nullptr);

// Calls `(stub.*method)(request)` as `policy` says and stores the response in `reply`.
template <typename Stub, typename Request, typename Reply>
absl::Status CallInto(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                      const Request& request, const CallPolicy& policy, Reply* reply,
                      int* attempts = nullptr) {
  if (absl::Status status = CheckSendable(request.ByteSizeLong()); !status.ok()) return status;
  return CallWithRetry(
      policy, [&](grpc::ClientContext* context) { return (stub.*method)(context, request, reply); },
      attempts);
}

// Calls `(stub.*method)(request)` as `policy` says and returns the response.
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
