// The operations of a trainer since its newest checkpoint, on disk. After a crash they are applied
// again, so that no operation is lost that a client has a reply to.
//
// Each operation is written while it runs, and its reply waits until it is durable. See
// operation_records.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/task_pool.h"
#include "server/storage/journal.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/operation_records.h"

namespace braid {

// Owned by a trainer. Thread-safe, except Recover().
class OperationJournal {
 public:
  using Done = Journal::Done;

  // Arguments as of Journal::Open().
  static absl::StatusOr<std::unique_ptr<OperationJournal>> Open(const std::string& directory,
                                                                std::string description,
                                                                int64_t line, TaskPool* pool,
                                                                JournalHistory history,
                                                                RequestReader read_request);

  // Calls `apply` for the operations of `line` after `sequence`, in order, which must be
  // contiguous. Leaves out a last operation that has no result, and so no reply, if
  // - it is a publication,
  // - `apply` rejects it (INVALID_ARGUMENT, FAILED_PRECONDITION), as before the crash,
  // - the last call of Recover() did not return from applying it: it may have caused the crash.
  // Errors as Journal::Read(); DATA_LOSS if an operation is missing, invalid or rejected; other
  // errors of `apply`, such as RESOURCE_EXHAUSTED.
  absl::Status Recover(int64_t line, int64_t sequence,
                       absl::FunctionRef<absl::Status(JournaledOperation)> apply);

  // Calls Journal::last_line().
  int64_t last_line() const { return journal_->last_line(); }

  // Queues the operation, which is about to be applied. operation.write_request is called before
  // the next callback of Sync().
  void Begin(const Operation& operation, const std::string& history);
  // Queues the operation's result or failure.
  void End(const Operation& operation, const absl::StatusOr<OperationResult>& result);
  // Queues the result of an operation of Recover() that had no recorded result.
  void RecordResult(int64_t sequence, const OperationResult& result);
  // Calls Journal::Sync().
  void Sync(Done done) { journal_->Sync(std::move(done)); }
  int64_t bytes() const { return journal_->bytes(); }
  int64_t size() const { return journal_->size(); }
  // Returns the description of this process.
  const std::string& description() const { return description_; }

  // To be called before and after a checkpoint of the state after `sequence` is written.
  void BeginCheckpoint() { journal_->StartSegment(); }
  void EndCheckpoint(int64_t sequence) { journal_->Trim(sequence); }
  // Calls Journal::history_start().
  std::optional<JournalPosition> history_start() const { return journal_->history_start(); }
  // To be called after a restore of the state after `sequence`, which began `line`.
  void Restart(int64_t line, int64_t sequence);

 private:
  OperationJournal(const std::string& directory, std::unique_ptr<Journal> journal,
                   std::string description, RequestReader read_request)
      : attempt_path_(directory + "/attempt"),
        journal_(std::move(journal)),
        description_(std::move(description)),
        read_request_(std::move(read_request)) {}

  // Applies a last operation that has no result, unless an earlier attempt did not return.
  absl::Status Attempt(JournaledOperation operation,
                       absl::FunctionRef<absl::Status(JournaledOperation)> apply);
  // Leaves out an operation from now on.
  void LeaveOut(int64_t sequence, absl::string_view why);

  // A file that exists while Attempt() applies an operation.
  const std::string attempt_path_;
  const std::unique_ptr<Journal> journal_;
  const std::string description_;
  const RequestReader read_request_;
};

}  // namespace braid
