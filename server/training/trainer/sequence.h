// The order of a trainer's operations: each is applied once, whatever is sent twice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/training/trainer/operation.h"

namespace braid {

// Thread-compatible.
class Sequence {
 public:
  // What to do with an operation: nullopt: apply it; a result: it had been applied, this is its
  // recorded reply. INVALID_ARGUMENT for a number below 1, ABORTED for the last one with another
  // payload, FAILED_PRECONDITION for any other, naming the number expected, and for the next one if
  // the last is not by `last_operator`; empty: by anybody.
  absl::StatusOr<std::optional<OperationResult>> Admit(int64_t sequence,
                                                       const Fingerprint& fingerprint,
                                                       absl::string_view last_operator = "") const;
  // The operation that Admit() let through has been applied, for `last_operator`.
  void Record(int64_t sequence, const Fingerprint& fingerprint, const OperationResult& result,
              std::string last_operator);

  // What was recorded last.
  int64_t applied() const { return applied_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  const OperationResult& result() const { return result_; }
  const std::string& last_operator() const { return last_operator_; }

 private:
  int64_t applied_ = 0;
  Fingerprint fingerprint_;
  OperationResult result_;
  std::string last_operator_;
};

}  // namespace braid
