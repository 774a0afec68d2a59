// Reading a trainer's state: never an older one than was seen.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/handle.h"
#include "client/cpp/pipeline.h"

namespace braid::client {

absl::Status Handle::Read(absl::FunctionRef<absl::Status(const CallPolicy&)> read) {
  const absl::Time deadline = absl::Now() + policy_.timeout;
  while (true) {
    absl::StatusOr<bool> restarted = TryRead(read, deadline);
    if (!restarted.ok()) return restarted.status();
    if (!*restarted) return absl::OkStatus();
  }
}

absl::Status Handle::ReadOnce(absl::FunctionRef<absl::Status(const CallPolicy&)> read) {
  absl::StatusOr<bool> restarted = TryRead(read, absl::Now() + policy_.timeout);
  if (!restarted.ok()) return restarted.status();
  return *restarted ? absl::UnavailableError("the server was started again meanwhile")
                    : absl::OkStatus();
}

absl::StatusOr<bool> Handle::TryRead(absl::FunctionRef<absl::Status(const CallPolicy&)> read,
                                     absl::Time deadline) {
  absl::StatusOr<Moment> checked = BringUp(deadline);
  if (!checked.ok()) return checked.status();
  CallPolicy policy = policy_;
  policy.timeout = deadline - absl::Now();
  absl::Status status = read(policy);
  if (!status.ok()) return status;
  return StartedAfter(*checked);
}

absl::StatusOr<Handle::Moment> Handle::BringUp(absl::Time deadline) {
  if (pipeline_ != nullptr) return pipeline_->BringUp(deadline);
  while (true) {
    absl::StatusOr<Look> look = LookUp(log_.keeps(), deadline);
    if (!look.ok()) return look.status();
    if (look->broke) Broke();
    if (absl::Status status = CheckOperator(look->info); !status.ok()) return status;
    const int64_t stands = look->info.applied_sequence();
    if (stands >= standing_ && standing_ == log_.last()) {
      Heard(look->asked);
      return look->asked;
    }
    if (stands < standing_) {
      absl::StatusOr<int64_t> next =
          ResumeAt(look->info, {standing_, standing_, log_.base(), log_.keeps()},
                   [this] { return Restarted(); });
      if (!next.ok()) return next.status();
      standing_ = *next - 1;
    }
    absl::StatusOr<v1::StreamResponse> reply = SendUpTo(log_.last(), nullptr, deadline);
    if (!reply.ok()) return reply.status();
  }
}

absl::Status Handle::MakeUp(absl::Time deadline) {
  absl::Status status = BringUp(deadline).status();
  const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return away ? status : absl::OkStatus();
}

Handle::Seen Handle::seen() const {
  if (pipeline_ != nullptr) return pipeline_->seen();
  return {log_.last(), log_.keeps()};
}

absl::StatusOr<Handle::Look> Handle::LookUp(bool keeps, absl::Time deadline) const {
  Look look;
  while (true) {
    look.asked = std::chrono::steady_clock::now();
    CallPolicy once = policy_;
    once.timeout = deadline - absl::Now();
    once.max_attempts = 1;
    absl::StatusOr<v1::Trainer> info = Info(once);
    if (info.ok()) {
      if (info->id() != trainer_id_) {
        return absl::AbortedError(absl::StrCat(
            "trainer \"", name_, "\" was deleted, and another has its name: attach anew"));
      }
      look.info = *std::move(info);
      return look;
    }
    if (!absl::IsUnavailable(info.status())) return info.status();
    look.broke = true;
    // Waits for the server.
    info = Info(Patient(keeps, deadline - absl::Now()));
    if (!info.ok()) return info.status();
  }
}

absl::StatusOr<v1::Checkpoint> Handle::SaveCheckpoint() {
  const absl::Time deadline = absl::Now() + policy_.timeout;
  while (true) {
    const Seen before = seen();
    absl::StatusOr<v1::Checkpoint> checkpoint;
    const auto write = [&](const CallPolicy& policy) {
      checkpoint = WriteCheckpoint(before.keeps, policy.timeout);
      return checkpoint.status();
    };
    absl::StatusOr<bool> restarted = TryRead(write, deadline);
    if (!restarted.ok()) return restarted.status();
    if (!*restarted && checkpoint->sequence() >= before.sequence) return checkpoint;
  }
}

}  // namespace braid::client
