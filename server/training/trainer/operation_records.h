// A trainer's operations as records of its journal. Records, whose sequence is the operation's:
//
//   operation  a line of JSON with the history before it (Sequence::history()), time and batch ID,
//              and the client's request
//   result     JSON with step, loss and more; durable before the reply of a publication, else not
//              synced
//   failure    JSON with the error of an operation that changed nothing; durable before its reply
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/storage/journal_records.h"
#include "server/training/trainer/operation.h"

namespace braid {

// Kinds of records.
inline constexpr uint32_t kOperationRecord = 1;
inline constexpr uint32_t kResultRecord = 2;
inline constexpr uint32_t kFailureRecord = 3;

// Returns the operation of a request that Operation::write_request has written.
using RequestReader =
    std::function<absl::StatusOr<Operation>(OperationKind kind, const std::string& request)>;

// An operation's record without the request.
struct OperationSummary {
  OperationKind kind = OperationKind::kStep;
  std::string history;  // Sequence::history() before it
  std::string batch_id;
  absl::Time time;  // when it began
};

// The recorded part of an operation's result.
struct RecordedResult {
  int64_t step = 0;
  std::optional<double> loss;
  std::optional<double> gradient_norm;
  std::optional<double> lr;  // set only by updates
  bool skipped = false;
  std::string model;    // kPublish
  int64_t version = 0;  // kPublish
};

// An operation that was read.
struct JournaledOperation {
  Operation operation;
  std::string history;                   // Sequence::history() before it
  std::optional<RecordedResult> result;  // nullopt: not recorded
  // Description of the process that applied it.
  std::string description;
};

// Returns the name of its method, for example "Step".
std::string OperationName(OperationKind kind);

// Returns the first line of an operation's record.
std::string SummaryText(const Operation& operation, const std::string& history, absl::Time time);
RecordedResult PartToRecord(const OperationResult& result);
std::string ResultText(const RecordedResult& result);
std::string FailureText(const absl::Status& failure);

// Reads the first line of an operation's record, of which the body may be incomplete. DATA_LOSS if
// it is invalid.
absl::StatusOr<OperationSummary> ReadSummary(const JournalRecord& record);
// Reads an operation, without result and description. DATA_LOSS if it is invalid.
absl::StatusOr<JournaledOperation> ReadOperation(const JournalRecord& record,
                                                 const RequestReader& read_request);
// DATA_LOSS if it is invalid.
absl::StatusOr<RecordedResult> ReadResult(const JournalRecord& record);
// Returns the message of a failure; empty: unknown.
std::string ReadFailure(const JournalRecord& record);

}  // namespace braid
