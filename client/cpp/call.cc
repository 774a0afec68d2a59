#include "client/cpp/call.h"

#include <algorithm>
#include <cstdint>
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
  return absl::InvalidArgumentError(absl::StrCat("the request has ", bytes,
                                                 " bytes, a message may have ", kLimit,
                                                 ": send fewer rows at a time"));
}

absl::Duration Backoff(const CallPolicy& policy, int attempts) {
  const int64_t factor = int64_t{1} << std::min(attempts - 1, 30);
  const absl::Duration doubled = std::min(policy.initial_backoff * factor, policy.max_backoff);
  return std::max(policy.initial_backoff, doubled);
}

absl::Status Attempt(const CallPolicy& policy,
                     absl::FunctionRef<grpc::Status(grpc::ClientContext*)> attempt, int* attempts) {
  const absl::Time deadline = absl::Now() + policy.timeout;
  absl::Time given_up = absl::InfiniteFuture();
  for (int made = 1;; ++made) {
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    absl::Status status = ToAbsl(attempt(&context));
    if (attempts != nullptr) *attempts = made;
    if (!absl::IsUnavailable(status) || made >= policy.max_attempts) return status;
    if (made == 1) given_up = absl::Now() + policy.patience;
    const absl::Duration backoff = Backoff(policy, made);
    if (absl::Now() + backoff >= std::min(deadline, given_up)) return status;
    absl::SleepFor(backoff);
  }
}

}  // namespace braid::client
