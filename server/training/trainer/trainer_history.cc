#include "server/training/trainer/trainer_history.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Bytes of a record that are read to list it: more than the longest first line.
constexpr int64_t kHead = 4096;

// Collects the records of one segment after the other.
class HistoryReader {
 public:
  absl::Status Read(const JournalSegment& file) {
    const auto segment = std::make_shared<const JournalSegment>(file);
    return ScanSegment(file, kHead, [&](const JournalRecord& record, int64_t offset) {
      return Add(record, offset, segment);
    });
  }

  std::vector<RecordedOperation> operations;  // ordered by position

 private:
  absl::Status Add(const JournalRecord& record, int64_t offset,
                   const std::shared_ptr<const JournalSegment>& segment) {
    const JournalPosition position{segment->line, record.sequence};
    if (record.kind == kOperationRecord) {
      absl::StatusOr<OperationSummary> summary = ReadSummary(record);
      if (!summary.ok()) {
        return DamagedRecord(segment->path, offset);
      }
      operations.push_back({position, *std::move(summary), std::nullopt, "", segment, offset});
      return absl::OkStatus();
    }
    // The result of a recent operation. Those of operations that are no longer there are ignored.
    // Several have the same position if all but the last have failed.
    const auto after =
        std::ranges::upper_bound(operations, position, {}, &RecordedOperation::position);
    if (after == operations.begin() || std::prev(after)->position != position) {
      return absl::OkStatus();
    }
    RecordedOperation& operation = *std::prev(after);
    if (record.kind == kFailureRecord) {
      operation.error = ReadFailure(record);
      if (operation.error.empty()) {
        operation.error = "skipped after a restart: it may have ended the server";
      }
    } else if (record.kind == kResultRecord) {
      BRAID_ASSIGN_OR_RETURN(operation.result, ReadResult(record));
    }
    return absl::OkStatus();
  }
};

void KeepLast(std::vector<RecordedOperation>* operations, size_t most) {
  if (operations->size() > most) {
    operations->erase(operations->begin(), operations->end() - static_cast<std::ptrdiff_t>(most));
  }
}

}  // namespace

absl::StatusOr<std::vector<RecordedOperation>> ReadHistory(const std::string& journal_directory,
                                                           const HistoryRange& range) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<JournalSegment> segments,
                         ListSegments(journal_directory));
  HistoryReader reader;
  // Results are at most this many operations behind theirs.
  constexpr size_t kPipelined = 1000;
  const bool all_steps = range.first_step == 0 && range.last_step == HistoryRange().last_step;
  for (const JournalSegment& segment : segments) {
    BRAID_RETURN_IF_ERROR(reader.Read(segment));
    if (range.limit > 0 && all_steps) {
      KeepLast(&reader.operations, range.limit + kPipelined);
    }
  }
  std::vector<RecordedOperation>& all = reader.operations;
  int64_t step = 0;
  std::erase_if(all, [&](const RecordedOperation& one) {
    step = one.result ? one.result->step : step;
    return step < range.first_step || step > range.last_step;
  });
  if (range.limit > 0) {
    KeepLast(&all, range.limit);
  }
  return std::move(all);
}

absl::Status StepNotFound(const std::vector<RecordedOperation>& history,
                          const std::vector<CheckpointInfo>& checkpoints, int64_t step) {
  std::set<int64_t> reached;
  for (const CheckpointInfo& checkpoint : checkpoints) {
    reached.insert(checkpoint.step);
  }
  std::string recorded = "no operations";
  const auto known = [](const RecordedOperation& one) { return one.result.has_value(); };
  const auto first = std::ranges::find_if(history, known);
  if (first != history.end()) {
    int64_t last = 0;
    for (const RecordedOperation& operation : history) {
      last = std::max(last, operation.result ? operation.result->step : 0);
    }
    recorded = absl::StrCat("steps ", first->result->step, " to ", last);
  }
  return absl::NotFoundError(absl::StrCat(
      "step: ", step, " is not available (journal: ", recorded,
      "; oldest checkpoint: ", reached.empty() ? "none" : absl::StrCat("step ", *reached.begin()),
      step < (first != history.end() ? first->result->step : 0)
          ? "); journal_history_bytes or journal_history_days keeps more"
          : ")"));
}

std::optional<JournalPosition> FindUpdate(const std::vector<RecordedOperation>& history,
                                          int64_t step) {
  std::optional<JournalPosition> found;
  for (const RecordedOperation& operation : history) {
    // Updates, and only they, have a learning rate.
    if (operation.result && operation.error.empty() && operation.result->step == step &&
        operation.result->lr) {
      found = operation.position;
    }
  }
  return found;
}

absl::StatusOr<PastState> FindStep(const std::vector<RecordedOperation>& history,
                                   const std::vector<CheckpointInfo>& checkpoints, int64_t step) {
  std::optional<PastState> found;
  if (const std::optional<JournalPosition> updated = FindUpdate(history, step)) {
    found = PastState{*updated, ""};
  }
  for (const CheckpointInfo& checkpoint : checkpoints) {
    const JournalPosition position{checkpoint.line, checkpoint.sequence};
    if (checkpoint.step != step) {
      continue;
    }
    const bool is_newer_line = !found || position.line > found->position.line;
    const bool is_earlier = found && position.line == found->position.line &&
                            position.sequence <= found->position.sequence;
    if (is_newer_line || is_earlier) {
      found = PastState{position, checkpoint.name};
    }
  }
  return found ? absl::StatusOr<PastState>(*std::move(found))
               : StepNotFound(history, checkpoints, step);
}

}  // namespace braid
