// Sequence numbers of a trainer's operations, which make retries idempotent.
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
  // Returns nullopt for the next operation, which the caller applies, and the recorded result for a
  // retry of the last one. INVALID_ARGUMENT for a number below 1; ABORTED for the last number with
  // another payload; FAILED_PRECONDITION for any other number, naming the expected one, and for the
  // next one if the client that sent the last is not `last_operator` (empty: any client).
  absl::StatusOr<std::optional<OperationResult>> Admit(int64_t sequence,
                                                       const Fingerprint& fingerprint,
                                                       absl::string_view last_operator = "") const;
  // Records the result of an operation that Admit() returned nullopt for, sent by `last_operator`.
  void Record(int64_t sequence, const Fingerprint& fingerprint, const OperationResult& result,
              std::string last_operator);

  // Continues after an operation that was recorded before with this history().
  void Restore(int64_t sequence, const Fingerprint& fingerprint, const OperationResult& result,
               std::string last_operator, std::string history);

  // The operation recorded last.
  int64_t applied() const { return applied_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  const OperationResult& result() const { return result_; }
  const std::string& last_operator() const { return last_operator_; }
  // Checksum of the fingerprints of all recorded operations, in order.
  const std::string& history() const { return history_; }

 private:
  int64_t applied_ = 0;
  Fingerprint fingerprint_;
  OperationResult result_;
  std::string last_operator_;
  std::string history_;
};

}  // namespace braid
