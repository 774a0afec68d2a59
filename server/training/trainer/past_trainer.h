// A copy of a trainer in an earlier state, which is recomputed from a checkpoint and the journal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/storage/checkpoint_store.h"
#include "server/training/trainer/checkpointer.h"
#include "server/training/trainer/operation_records.h"
#include "server/training/trainer/paged_trainer.h"
#include "server/training/trainer/replay_report.h"
#include "server/training/trainer/trainer_history.h"

namespace braid {

// The data from which an earlier state of a trainer is recomputed.
struct PastSource {
  std::string trainer_id;
  std::shared_ptr<void> use;  // Trainer::UseHistory()
  std::vector<RecordedOperation> history;
  absl::Status damage;                      // why `history` is missing
  std::vector<CheckpointInfo> checkpoints;  // the oldest first
  // Reads a checkpoint. Errors as ReadCheckpoint().
  std::function<absl::StatusOr<StoredCheckpoint>(const std::string& name)> read_checkpoint;
  // Creates a trainer without files that stands at the checkpoint.
  std::function<absl::StatusOr<LoadedTrainer>(StoredCheckpoint read)> create;
  RequestReader read_request;
  // Returns true if the caller has cancelled.
  std::function<bool()> cancelled;
};

// Thread-compatible. Methods block.
class PastTrainer {
 public:
  // Returns the trainer after the operation at `position`. NOT_FOUND if the journal or a checkpoint
  // before it is missing, DATA_LOSS if they do not match.
  static absl::StatusOr<PastTrainer> At(const PastSource& source, JournalPosition position);

  Trainer& trainer() const { return *loaded_.trainer; }

 private:
  friend absl::StatusOr<ReplayReport> ReplayAndCompare(const PastSource& source,
                                                       const ReplayRange& range);
  using Use = absl::FunctionRef<absl::Status(const RecordedOperation&, const OperationResult&)>;

  explicit PastTrainer(LoadedTrainer loaded) : loaded_(std::move(loaded)) {}

  // Applies operations. Calls `use` after each, until it fails.
  absl::Status Apply(const PastSource& source,
                     absl::Span<const RecordedOperation* const> operations, Use use);

  LoadedTrainer loaded_;
};

// Applies the operations of `range` again and compares their results, and the checkpoints of the
// same states, with the recorded ones. NOT_FOUND; the message names the available steps.
absl::StatusOr<ReplayReport> ReplayAndCompare(const PastSource& source, const ReplayRange& range);

}  // namespace braid
