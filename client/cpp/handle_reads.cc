// Reading a trainer's state, never an older one than was seen, and going on from where it stands.
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

absl::StatusOr<bool> Handle::MakeUp(absl::Time deadline) {
  absl::Status status = BringUp(deadline).status();
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return status;
  return status.ok();
}

absl::StatusOr<v1::Trainer> Handle::Sync() {
  if (absl::Status status = CheckFree(); !status.ok()) return status;
  CallPolicy policy = policy_;
  const absl::Time deadline = absl::Now() + policy.timeout;
  while (true) {
    absl::StatusOr<bool> made_up = MakeUp(deadline);
    if (!made_up.ok()) return made_up.status();
    policy.timeout = deadline - absl::Now();
    absl::StatusOr<v1::Trainer> info = Info(policy, /*settled=*/true);
    if (!info.ok()) return info;
    const int64_t applied = info->applied_sequence();
    const bool undone = *made_up && applied < standing_;  // by another restart
    if (undone || TakeOver(*info)) continue;
    const bool stays = standing_ == log_.last() && standing_ == applied;
    if (!stays || !CheckOperator(*info).ok()) BeginAt(*info);
    ForgetUnanswered();
    return info;
  }
}

void Handle::LeaveOpen(std::vector<OperationLog::Operation> operations,
                       const absl::Status& status) {
  const bool open =
      absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
  if (log_.keeps() && open && !operations.empty()) unanswered_ = std::move(operations);
}

bool Handle::TakeOver(const v1::Trainer& info) {
  const int64_t number = info.applied_sequence() - log_.last();
  const bool mine = info.id() == trainer_id_ && info.last_operator() == client_id_;
  if (!mine || number <= 0 || number > static_cast<int64_t>(unanswered_.size())) return false;
  for (int64_t i = 0; i < number; ++i) log_.Add(unanswered_[static_cast<size_t>(i)]);
  ForgetUnanswered();
  standing_ = log_.last() - 1;
  return true;
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
