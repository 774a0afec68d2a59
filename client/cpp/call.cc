#include "client/cpp/call.h"

#include <algorithm>
#include <limits>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace braid::client {

absl::Status ToAbsl(const grpc::Status& status) {
  // Both enumerations are those of google.rpc.Code.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) {
    result.SetPayload("type.googleapis.com/google.rpc.Status", absl::Cord(status.error_details()));
  }
  return result;
}

void SetDeadline(grpc::ClientContext& context, absl::Time deadline) {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
}

absl::Status CheckSendable(size_t bytes) {
  constexpr size_t kLimit = std::numeric_limits<int>::max();
  if (bytes <= kLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request has ", bytes,
                                                 " bytes, a message may have ", kLimit,
                                                 ": send fewer rows at a time"));
}

absl::Status Attempt(const CallPolicy& policy,
                     absl::FunctionRef<grpc::Status(grpc::ClientContext*)> attempt) {
  const absl::Time deadline = absl::Now() + policy.timeout;
  absl::Duration backoff = policy.initial_backoff;
  for (int attempts = 1;; ++attempts) {
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    absl::Status status = ToAbsl(attempt(&context));
    const bool last = attempts >= policy.max_attempts || absl::Now() + backoff >= deadline;
    if (!absl::IsUnavailable(status) || last) return status;
    absl::SleepFor(backoff);
    backoff = std::min(2 * backoff, policy.max_backoff);
  }
}

}  // namespace braid::client
