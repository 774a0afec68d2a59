#include "client/cpp/operation_log.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cpp/call.h"

namespace braid::client {
namespace {

// Approximate memory of an entry in addition to its message.
constexpr int64_t kBookkeepingBytes = 512;

constexpr absl::string_view kRefresh = "call Refresh to continue from its current state";
constexpr absl::string_view kOtherClient =
    ": another client operates this trainer, or an earlier operation has an unknown outcome; ";

int64_t Size(size_t bytes) { return kBookkeepingBytes + static_cast<int64_t>(bytes); }

}  // namespace

void OperationLog::Reset(int64_t applied) {
  base_ = applied;
  entries_.clear();
  bytes_ = 0;
}

void OperationLog::Limit(size_t operations, int64_t bytes) {
  max_operations_ = operations;
  max_bytes_ = bytes;
}

bool OperationLog::IsFull(size_t bytes, bool keeps_graph) const {
  if (entries_.empty()) return false;
  if (entries_.back().operation->forward().keep_graph() && !keeps_graph) return false;
  return entries_.size() >= max_operations_ || bytes_ + Size(bytes) > max_bytes_;
}

const OperationLog::Operation& OperationLog::Get(int64_t sequence) const {
  return entries_[static_cast<size_t>(sequence - base_ - 1)].operation;
}

void OperationLog::Add(Operation operation) {
  const int64_t size = Size(operation->ByteSizeLong());
  bytes_ += size;
  entries_.push_back({std::move(operation), size});
}

void OperationLog::Trim(int64_t applied, int64_t durable) {
  // Later ones stay, even if they are durable, because their replies are pending.
  const int64_t until = retains_ ? std::min(durable, applied) : applied;
  while (!entries_.empty() && base_ < until) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
    ++base_;
  }
}

std::vector<OperationLog::Operation> OperationLog::TruncateAfter(int64_t sequence) {
  std::vector<Operation> dropped;
  while (!entries_.empty() && last() > sequence) {
    bytes_ -= entries_.back().bytes;
    dropped.push_back(std::move(entries_.back().operation));
    entries_.pop_back();
  }
  std::reverse(dropped.begin(), dropped.end());
  return dropped;
}

absl::StatusOr<int64_t> ResumeAt(const v1::Trainer& info, const Position& position,
                                 absl::FunctionRef<bool()> restarted) {
  const int64_t applied = info.applied_sequence();
  if (position.acknowledged <= applied && applied <= position.sent) {
    return std::max(applied, position.acknowledged + 1);
  }
  const std::string expects =
      absl::StrCat("trainer '", info.name(), "' expects operation ", applied + 1);
  if (applied > position.sent) {
    return WithOtherClientHint(absl::FailedPreconditionError(
        absl::StrCat(expects, ", but this client has sent operations up to ", position.sent)));
  }
  if (applied != info.durable_sequence() || !restarted()) {
    return absl::FailedPreconditionError(absl::StrCat(
        expects, ", but it had applied ", position.acknowledged,
        " and the server has not restarted: another client has restored a checkpoint; ", kRefresh));
  }
  if (applied < position.base) {
    return absl::FailedPreconditionError(absl::StrCat(
        expects, ": the server restarted and lost operations up to ", position.acknowledged,
        ". This client can resend only from ", position.base + 1,
        position.retains ? " (earlier ones came from other programs); "
                         : " (the trainer has no checkpoint policy); ",
        kRefresh));
  }
  return applied + 1;
}

absl::Status OtherOperatorError(const v1::Trainer& info) {
  return absl::FailedPreconditionError(absl::StrCat(
      "trainer '", info.name(), "': operation ", info.applied_sequence(),
      " is not this client's: another client operated the trainer or restored a checkpoint; ",
      kRefresh));
}

absl::Status WithOtherClientHint(const absl::Status& status) {
  return WithMessage(status, absl::StrCat(status.message(), kOtherClient, kRefresh));
}

}  // namespace braid::client
