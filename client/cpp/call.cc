#include "client/cpp/call.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace braid::client {

absl::Status ToAbsl(const grpc::Status& status) {
  // Both enumerations use the numbers of google.rpc.Code.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) {
    result.SetPayload("type.googleapis.com/google.rpc.Status", absl::Cord(status.error_details()));
  }
  return result;
}

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status result(status.code(), message);
  status.ForEachPayload([&result](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

void SetDeadline(grpc::ClientContext& context, absl::Time deadline) {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
}

absl::Status CheckSendable(size_t bytes) {
  constexpr size_t kLimit = std::numeric_limits<int>::max();
  if (bytes <= kLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request: ", bytes, " bytes (expected at most ",
                                                 kLimit, "); send fewer rows per request"));
}

absl::Duration Backoff(const CallPolicy& policy, int attempts) {
  const int64_t factor = int64_t{1} << std::min(attempts - 1, 30);
  const absl::Duration doubled = std::min(policy.initial_backoff * factor, policy.max_backoff);
  return std::max(policy.initial_backoff, doubled);
}

absl::Status CallWithRetry(const CallPolicy& policy,
                           absl::FunctionRef<grpc::Status(grpc::ClientContext*)> attempt,
                           int* attempts) {
  const absl::Time deadline = absl::Now() + policy.timeout;
  absl::Time retry_deadline = absl::InfiniteFuture();
  for (int attempted = 1;; ++attempted) {
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    absl::Status status = ToAbsl(attempt(&context));
    if (attempts != nullptr) *attempts = attempted;
    if (!absl::IsUnavailable(status) || attempted >= policy.max_attempts) return status;
    if (attempted == 1) retry_deadline = absl::Now() + policy.retry_window;
    const absl::Duration backoff = Backoff(policy, attempted);
    if (absl::Now() + backoff >= std::min(deadline, retry_deadline)) return status;
    absl::SleepFor(backoff);
  }
}

}  // namespace braid::client
