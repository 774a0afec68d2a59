#include "server/training/trainer/operation_journal.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/storage/files.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// Returns whether an operation that fails with this error fails whenever it is applied to the same
// state.
bool AlwaysFails(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
}

absl::Status CannotApply(int64_t sequence, const absl::Status& failure) {
  // The operation was applied before: a rejection means that the journal or the state is wrong.
  const absl::StatusCode code = AlwaysFails(failure) ? absl::StatusCode::kDataLoss : failure.code();
  return {code, absl::StrCat("operation ", sequence,
                             " of the journal cannot be applied again: ", failure.message())};
}

absl::Status IsMissing(int64_t sequence) {
  return absl::DataLossError(absl::StrCat("operation ", sequence, " is not in the journal"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OperationJournal>> OperationJournal::Open(
    const std::string& directory, std::string description, int64_t line, TaskPool* pool,
    JournalHistory history, RequestReader read_request) {
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal,
                         Journal::Open(directory, description, line, pool, history));
  return std::unique_ptr<OperationJournal>(new OperationJournal(
      directory, std::move(journal), std::move(description), std::move(read_request)));
}

absl::Status OperationJournal::Recover(int64_t line, int64_t sequence,
                                       absl::FunctionRef<absl::Status(JournaledOperation)> apply) {
  // An operation is applied when the next one shows that it did not fail.
  std::optional<JournaledOperation> next;
  const auto apply_next = [&](bool last) -> absl::Status {
    if (!next) {
      return absl::OkStatus();
    }
    JournaledOperation operation = *std::exchange(next, std::nullopt);
    const int64_t number = operation.operation.sequence;
    if (number != sequence + 1) {
      return IsMissing(sequence + 1);
    }
    sequence = number;
    if (operation.result) {
      const absl::Status applied = apply(std::move(operation));
      return applied.ok() ? applied : CannotApply(number, applied);
    }
    if (last) {
      return Attempt(std::move(operation), apply);
    }
    if (operation.operation.kind == OperationKind::kPublish) {
      return CannotApply(number, absl::DataLossError("its result is missing"));
    }
    const absl::Status applied = apply(std::move(operation));
    return applied.ok() ? applied : CannotApply(number, applied);
  };
  const auto use = [&](const JournalRecord& record, absl::string_view description) -> absl::Status {
    const bool of_next = next && next->operation.sequence == record.sequence;
    if (record.kind == kFailureRecord && of_next) {
      next.reset();
    } else if (record.kind == kResultRecord && of_next) {
      BRAID_ASSIGN_OR_RETURN(next->result, ReadResult(record));
    } else if (record.kind == kOperationRecord && record.sequence > sequence) {
      if (of_next) {
        next.reset();  // It failed before the crash, without a reply.
      }
      BRAID_RETURN_IF_ERROR(apply_next(/*last=*/false));
      BRAID_ASSIGN_OR_RETURN(next, ReadOperation(record, read_request_));
      next->description = std::string(description);
    }
    return absl::OkStatus();
  };
  BRAID_RETURN_IF_ERROR(journal_->Read(line, sequence, use));
  return apply_next(/*last=*/true);
}

absl::Status OperationJournal::Attempt(JournaledOperation operation,
                                       absl::FunctionRef<absl::Status(JournaledOperation)> apply) {
  const int64_t number = operation.operation.sequence;
  if (operation.operation.kind == OperationKind::kPublish) {
    return absl::OkStatus();
  }
  std::error_code error;
  if (std::filesystem::exists(attempt_path_, error)) {
    LeaveOut(number, "the server ended while it applied it");
  } else {
    BRAID_RETURN_IF_ERROR(WriteFileDurably(attempt_path_, absl::StrCat(number, "\n")));
    const absl::Status applied = apply(std::move(operation));
    if (AlwaysFails(applied)) {
      LeaveOut(number, applied.message());
    } else if (!applied.ok()) {
      RemoveTree(attempt_path_).IgnoreError();  // if it fails, the next start skips the operation
      return CannotApply(number, applied);
    }
  }
  return RemoveTree(attempt_path_);
}

void OperationJournal::LeaveOut(int64_t sequence, absl::string_view why) {
  Log(LogModule::kTraining)
      .warn("operation {} of the journal is left out, it has no reply: {}", sequence,
            std::string(why));
  journal_->Append(kFailureRecord, sequence, [](std::string*) {});
  WaitFor<absl::Status>([&](auto done) { journal_->Sync(done); }).IgnoreError();  // else once more
}

void OperationJournal::Begin(const Operation& operation, const std::string& history) {
  journal_->Append(kOperationRecord, operation.sequence,
                   [summary = SummaryText(operation, history, absl::Now()),
                    write = operation.write_request](std::string* body) {
                     absl::StrAppend(body, summary, "\n");
                     write(body);
                   });
}

void OperationJournal::End(const Operation& operation,
                           const absl::StatusOr<OperationResult>& result) {
  const auto append = [&](uint32_t kind, std::string text) {
    journal_->Append(kind, operation.sequence,
                     [text = std::move(text)](std::string* body) { body->append(text); });
  };
  if (!result.ok()) {
    append(kFailureRecord, FailureText(result.status()));
  } else if (operation.kind == OperationKind::kPublish) {
    append(kResultRecord, ResultText(PartToRecord(*result)));
  } else {
    RecordResult(operation.sequence, *result);
  }
}

void OperationJournal::RecordResult(int64_t sequence, const OperationResult& result) {
  journal_->AppendNote({kResultRecord, sequence, ResultText(PartToRecord(result))});
}

void OperationJournal::Restart(int64_t line, int64_t sequence) {
  journal_->StartLine(line);
  journal_->Trim(sequence);
}

}  // namespace braid
