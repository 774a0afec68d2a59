#include "server/training/trainer/operation_journal.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/storage/files.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using nlohmann::json;

enum Kind : uint32_t { kOperation = 1, kResult = 2, kFailure = 3 };

// By OperationKind. Part of the file format.
constexpr std::array<absl::string_view, 6> kKindNames = {"Step",    "ForwardBackward", "OptimStep",
                                                         "Forward", "Backward",        "Publish"};

std::string WriteResult(const OperationResult& result) {
  json out = {{"step", result.step}};
  if (result.loss) {
    out["loss"] = *result.loss;
  }
  if (result.version > 0) {
    out["model"] = result.model;
    out["version"] = result.version;
  }
  return out.dump();
}

absl::StatusOr<OperationResult> ReadResult(const JournalRecord& record) {
  const json in = json::parse(record.body, nullptr, /*allow_exceptions=*/false);
  OperationResult result;
  result.applied_sequence = record.sequence;
  try {
    result.step = in.at("step").get<int64_t>();
    if (in.contains("loss") && in.at("loss").is_number()) {  // null: not finite
      result.loss = in.at("loss").get<double>();
    }
    result.version = in.value("version", int64_t{0});
    result.model = in.value("model", std::string());
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("the journal's result of operation ", record.sequence,
                                            " is invalid: ", error.what()));
  }
  return result;
}

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
    ReadRequest read_request) {
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal,
                         Journal::Open(directory, description, line, pool));
  return std::unique_ptr<OperationJournal>(new OperationJournal(
      directory, std::move(journal), std::move(description), std::move(read_request)));
}

absl::StatusOr<JournaledOperation> OperationJournal::Parse(const JournalRecord& record) const {
  const size_t end = record.body.find('\n');
  const auto invalid = [&](absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat("operation ", record.sequence, " of the journal is invalid: ", why));
  };
  if (end == std::string::npos) {
    return invalid("it has no description");
  }
  const json about = json::parse(absl::string_view(record.body).substr(0, end), nullptr,
                                 /*allow_exceptions=*/false);
  if (!about.is_object() || !about.contains("kind") || !about["kind"].is_string() ||
      !about.contains("history") || !about["history"].is_string()) {
    return invalid("its description has no kind or history");
  }
  const auto name = std::ranges::find(kKindNames, about["kind"].get<std::string>());
  if (name == kKindNames.end()) {
    return invalid(absl::StrCat("unknown kind '", about["kind"].get<std::string>(), "'"));
  }
  absl::StatusOr<Operation> operation = read_request_(
      static_cast<OperationKind>(name - kKindNames.begin()), record.body.substr(end + 1));
  if (!operation.ok()) {
    return invalid(operation.status().message());
  }
  if (operation->sequence != record.sequence) {
    return invalid(absl::StrCat("its request is of operation ", operation->sequence));
  }
  JournaledOperation read;
  read.operation = *std::move(operation);
  read.history = about["history"].get<std::string>();
  return read;
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
    if (record.kind == kFailure && of_next) {
      next.reset();
    } else if (record.kind == kResult && of_next) {
      BRAID_ASSIGN_OR_RETURN(next->result, ReadResult(record));
    } else if (record.kind == kOperation && record.sequence > sequence) {
      if (of_next) {
        next.reset();  // It failed before the crash, without a reply.
      }
      BRAID_RETURN_IF_ERROR(apply_next(/*last=*/false));
      BRAID_ASSIGN_OR_RETURN(next, Parse(record));
      next->description = std::string(description);
    }
    return absl::OkStatus();
  };
  BRAID_RETURN_IF_ERROR(journal_->Read(line, use));
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
  journal_->Append(kFailure, sequence, [](std::string*) {});
  WaitFor<absl::Status>([&](auto done) { journal_->Sync(done); }).IgnoreError();  // else once more
}

void OperationJournal::Begin(const Operation& operation, const std::string& history) {
  const json about = {{"kind", kKindNames.at(static_cast<size_t>(operation.kind))},
                      {"history", history}};
  journal_->Append(kOperation, operation.sequence,
                   [about = about.dump(), write = operation.write_request](std::string* body) {
                     absl::StrAppend(body, about, "\n");
                     write(body);
                   });
}

void OperationJournal::End(const Operation& operation,
                           const absl::StatusOr<OperationResult>& result) {
  const auto append = [&](Kind kind, std::string text) {
    journal_->Append(kind, operation.sequence,
                     [text = std::move(text)](std::string* body) { body->append(text); });
  };
  if (!result.ok()) {
    append(kFailure, json{{"error", result.status().ToString()}}.dump());
  } else if (operation.kind == OperationKind::kPublish) {
    append(kResult, WriteResult(*result));
  } else {
    journal_->AppendNote({kResult, operation.sequence, WriteResult(*result)});
  }
}

void OperationJournal::Restart(int64_t line, int64_t sequence) {
  journal_->StartLine(line);
  journal_->Trim(sequence);
}

}  // namespace braid
