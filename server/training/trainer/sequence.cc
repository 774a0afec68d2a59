#include "server/training/trainer/sequence.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/checksum.h"

namespace braid {

absl::StatusOr<std::optional<OperationResult>> Sequence::Admit(
    int64_t sequence, const Fingerprint& fingerprint, absl::string_view last_operator) const {
  const int64_t next = applied_ + 1;
  if (sequence < 1) {
    return InvalidField("sequence",
                        absl::StrCat(sequence, " is out of range (expected ", next, ")"));
  }
  if (sequence == next) {
    const bool follows =
        last_operator.empty() || last_operator_.empty() || last_operator == last_operator_;
    return follows
               ? absl::StatusOr<std::optional<OperationResult>>(std::nullopt)
               : absl::FailedPreconditionError(absl::StrCat(
                     "sender.last_operator: operation ", applied_,
                     " is not from this client: another client has sent operations or restored a "
                     "checkpoint"));
  }
  if (sequence != applied_) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence: ", sequence, " is out of order (expected ", next, ")"));
  }
  if (fingerprint != fingerprint_) {
    return absl::AbortedError(absl::StrCat("sequence: ", sequence,
                                           " was applied with another request or by another "
                                           "client (expected ",
                                           next, " for a new operation)"));
  }
  OperationResult replay = result_;
  replay.replayed = true;
  return replay;
}

void Sequence::Record(int64_t sequence, const Fingerprint& fingerprint,
                      const OperationResult& result, std::string last_operator) {
  std::string history =
      ChecksumOf(absl::StrCat(history_, " ", fingerprint.high, " ", fingerprint.low));
  Restore(sequence, fingerprint, result, std::move(last_operator), std::move(history));
}

void Sequence::Restore(int64_t sequence, const Fingerprint& fingerprint,
                       const OperationResult& result, std::string last_operator,
                       std::string history) {
  applied_ = sequence;
  fingerprint_ = fingerprint;
  result_ = result;
  last_operator_ = std::move(last_operator);
  history_ = std::move(history);
}

}  // namespace braid
