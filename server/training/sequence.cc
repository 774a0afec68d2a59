#include "server/training/sequence.h"

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

absl::StatusOr<std::optional<OperationResult>> Sequence::Admit(
    int64_t sequence, const Fingerprint& fingerprint) const {
  const int64_t next = applied_ + 1;
  if (sequence < 1) {
    return InvalidField("sequence",
                        absl::StrCat(sequence, "; operations are counted from 1: expected ", next));
  }
  if (sequence == next) {
    return std::nullopt;
  }
  if (sequence != applied_) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence: ", sequence, " is out of order; expected ", next));
  }
  if (fingerprint != fingerprint_) {
    return absl::AbortedError(absl::StrCat("sequence: ", sequence,
                                           " has been applied with another request, or by another "
                                           "client; expected ",
                                           next, " for a new one"));
  }
  OperationResult replay = result_;
  replay.replayed = true;
  return replay;
}

void Sequence::Record(int64_t sequence, const Fingerprint& fingerprint,
                      const OperationResult& result) {
  applied_ = sequence;
  fingerprint_ = fingerprint;
  result_ = result;
}

}  // namespace braid
