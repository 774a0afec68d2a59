#include "client/cpp/operation_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cpp/call.h"

namespace braid::client {
namespace {

// What an operation takes beside its message, about.
constexpr int64_t kBookkeepingBytes = 512;

constexpr absl::string_view kRefresh = "Refresh goes on from where it stands";
constexpr absl::string_view kOtherClient =
    ": another client operates this trainer, or an operation of unknown outcome went before; ";

int64_t Size(size_t bytes) { return kBookkeepingBytes + static_cast<int64_t>(bytes); }

}  // namespace

void OperationLog::Reset(int64_t applied) {
  base_ = applied;
  entries_.clear();
  bytes_ = 0;
}

void OperationLog::Limit(size_t operations, int64_t bytes) {
  most_operations_ = operations;
  most_bytes_ = bytes;
}

bool OperationLog::IsFull(size_t bytes, bool keeps_graph) const {
  if (entries_.empty()) return false;
  if (entries_.back().operation->forward().keep_graph() && !keeps_graph) return false;
  return entries_.size() >= most_operations_ || bytes_ + Size(bytes) > most_bytes_;
}

const OperationLog::Operation& OperationLog::Get(int64_t sequence) const {
  return entries_[static_cast<size_t>(sequence - base_ - 1)].operation;
}

void OperationLog::Add(Operation operation) {
  const int64_t size = Size(operation->ByteSizeLong());
  bytes_ += size;
  entries_.push_back({std::move(operation), size});
}

void OperationLog::Settle(int64_t applied, int64_t durable) {
  const int64_t until = keeps_ ? durable : applied;
  while (!entries_.empty() && base_ < until) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
    ++base_;
  }
}

std::vector<OperationLog::Operation> OperationLog::DropAfter(int64_t sequence) {
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
  const int64_t stands = info.applied_sequence();
  if (position.seen <= stands && stands <= position.sent) {
    return std::max(stands, position.seen + 1);
  }
  const std::string expects =
      absl::StrCat("trainer \"", info.name(), "\" expects operation ", stands + 1);
  if (stands > position.sent) {
    return ByAnotherClient(absl::FailedPreconditionError(
        absl::StrCat(expects, ", this handle is at ", position.sent)));
  }
  if (stands != info.durable_sequence() || !restarted()) {
    return absl::FailedPreconditionError(absl::StrCat(
        expects, ", though it had applied ", position.seen,
        " and the server was not started again: another client has restored a checkpoint; ",
        kRefresh));
  }
  if (stands < position.base) {
    return absl::FailedPreconditionError(absl::StrCat(
        expects, ": with the server's restart it has lost those up to ", position.seen, ", and ",
        position.keeps ? "this handle keeps none before "
                       : "the trainer has no checkpoint policy, so this handle keeps none before ",
        position.base + 1, "; ", kRefresh));
  }
  return stands + 1;
}

absl::Status OperatedByAnother(const v1::Trainer& info) {
  return absl::FailedPreconditionError(absl::StrCat(
      "trainer \"", info.name(), "\" stands at another operation ", info.applied_sequence(),
      " than this client knows: another client has operated it, or restored a checkpoint; ",
      kRefresh));
}

absl::Status ByAnotherClient(const absl::Status& status) {
  return WithMessage(status, absl::StrCat(status.message(), kOtherClient, kRefresh));
}

}  // namespace braid::client
