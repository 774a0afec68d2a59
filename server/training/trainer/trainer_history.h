// The operations in a trainer's journal, and the states between them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/journal_records.h"
#include "server/training/trainer/operation_records.h"

namespace braid {

struct RecordedOperation {
  JournalPosition position;
  OperationSummary summary;
  std::optional<RecordedResult> result;  // nullopt: it failed, is running, or is not known
  std::string error;                     // why it failed; empty: it did not
  // The record: its segment, and its offset there.
  std::shared_ptr<const JournalSegment> segment;
  int64_t offset = 0;
};

// Operations after which the number of updates is in a range. One without result counts as the one
// before it.
struct HistoryRange {
  int64_t first_step = 0;
  int64_t last_step = std::numeric_limits<int64_t>::max();
  size_t limit = 0;  // newest ones; 0: all
};

// Returns the operations of a journal, which may be in use, the oldest first. DATA_LOSS if the
// journal is damaged.
absl::StatusOr<std::vector<RecordedOperation>> ReadHistory(const std::string& journal_directory,
                                                           const HistoryRange& range = {});

// A state that a trainer had.
struct PastState {
  JournalPosition position;  // of the last operation before it
  std::string checkpoint;    // of this state; empty: none
};

// Returns the position of update number `step`, in the newest line that has it.
std::optional<JournalPosition> FindUpdate(const std::vector<RecordedOperation>& history,
                                          int64_t step);

// Returns the state after update number `step`, in the newest line that has it. NOT_FOUND; the
// message names the available steps.
absl::StatusOr<PastState> FindStep(const std::vector<RecordedOperation>& history,
                                   const std::vector<CheckpointInfo>& checkpoints, int64_t step);
// Returns the error of FindStep().
absl::Status StepNotFound(const std::vector<RecordedOperation>& history,
                          const std::vector<CheckpointInfo>& checkpoints, int64_t step);

}  // namespace braid
