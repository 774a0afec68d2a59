#include "server/training/trainer/past_trainer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "server/base/status.h"
#include "server/storage/input_file.h"
#include "server/telemetry/log.h"
#include "server/training/trainer/trainer.h"

namespace braid {
namespace {

constexpr char kNoBase[] =
    "step: cannot be recomputed, no checkpoint before it matches the journal (a journal history "
    "keeps more checkpoints)";

// Returns the operation at `position` that was applied, or nullptr.
const RecordedOperation* FindApplied(const std::vector<RecordedOperation>& history,
                                     const JournalPosition& position) {
  const auto after = std::ranges::upper_bound(history, position, {}, &RecordedOperation::position);
  if (after == history.begin() || std::prev(after)->position != position ||
      !std::prev(after)->error.empty()) {
    return nullptr;
  }
  return &*std::prev(after);
}

// Consecutive operations, the oldest first.
using Path = std::vector<const RecordedOperation*>;

// Returns the operation before `first`, the first one of its line, in the line from which the
// restore between them branched off; nullptr if the journal does not have it.
const RecordedOperation* FindBefore(const std::vector<RecordedOperation>& history,
                                    const RecordedOperation& first) {
  const RecordedOperation* before = nullptr;
  const RecordedOperation* last = nullptr;  // of the newest line that ends there
  for (const RecordedOperation& other : history) {
    if (other.position.line >= first.position.line) {
      break;
    }
    if (other.position.sequence + 1 == first.position.sequence && other.error.empty() &&
        FindApplied(history, {other.position.line, first.position.sequence}) == nullptr) {
      last = &other;
    }
    // An operation that follows the same state, also one that failed.
    if (other.position.sequence == first.position.sequence &&
        other.summary.history == first.summary.history) {
      const RecordedOperation* const found =
          FindApplied(history, {other.position.line, first.position.sequence - 1});
      before = found != nullptr ? found : before;
    }
  }
  // If the restore was to the end of a line, Trainer::Replay() checks that it was this one.
  return before != nullptr ? before : last;
}

// Returns the operations that led to the state after the one at `end`, as far as the journal has
// them.
Path PathTo(const std::vector<RecordedOperation>& history, JournalPosition end) {
  Path path;
  for (JournalPosition at = end; at.sequence > 0; --at.sequence) {
    const RecordedOperation* operation = FindApplied(history, at);
    if (operation == nullptr && !path.empty()) {
      operation = FindBefore(history, *path.back());
    }
    if (operation == nullptr) {
      break;
    }
    at = operation->position;
    path.push_back(operation);
  }
  std::ranges::reverse(path);
  return path;
}

// Returns the operations of the path after `sequence`.
absl::Span<const RecordedOperation* const> After(const Path& path, int64_t sequence) {
  const auto first = std::ranges::upper_bound(
      path, sequence, {}, [](const RecordedOperation* one) { return one->position.sequence; });
  return absl::MakeConstSpan(path).subspan(static_cast<size_t>(first - path.begin()));
}

// Returns the checkpoints from which the path may lead to `end`, the nearest first.
std::vector<CheckpointInfo> BasesFor(const PastSource& source, const Path& path,
                                     const JournalPosition& end) {
  std::vector<CheckpointInfo> bases;
  for (const CheckpointInfo& info : source.checkpoints) {
    const bool is_state = info.line == end.line && info.sequence == end.sequence;
    const bool precedes = !path.empty() && info.sequence < end.sequence &&
                          info.sequence + 1 >= path.front()->position.sequence;
    if (is_state || precedes) {
      bases.push_back(info);
    }
  }
  std::ranges::stable_sort(bases, std::greater<>(), &CheckpointInfo::sequence);
  return bases;
}

// Returns whether the operations of the path follow the checkpoint's state.
bool IsFollowedBy(const StoredCheckpoint& read, const Path& path) {
  if (read.contents.progress.keeps_graph) {
    return false;  // a Backward may follow
  }
  const absl::Span<const RecordedOperation* const> next = After(path, read.info.sequence);
  return next.empty() || next.front()->summary.history == read.contents.progress.history;
}

std::map<std::string, const HostTensor*> ByName(const TrainingSnapshot& snapshot) {
  std::map<std::string, const HostTensor*> tensors;
  for (const StateTensor& entry : snapshot.model) {
    tensors[entry.tensor.name] = &entry.tensor;
  }
  for (const HostTensor& tensor : snapshot.optimizer) {
    tensors[absl::StrCat("optimizer: ", tensor.name)] = &tensor;
  }
  for (const HostTensor& tensor : snapshot.gradients) {
    tensors[absl::StrCat("gradients: ", tensor.name)] = &tensor;
  }
  return tensors;
}

// Returns the name of a tensor of `replayed` that differs in any bit from that of `recorded`;
// empty: none. Checkpoints of older servers have more tensors.
std::string DifferentTensor(const TrainingSnapshot& recorded, const TrainingSnapshot& replayed) {
  const auto expected = ByName(recorded);
  for (const auto& [name, tensor] : ByName(replayed)) {
    const auto other = expected.find(name);
    if (other == expected.end() || other->second->shape != tensor->shape ||
        other->second->bytes != tensor->bytes ||
        (tensor->bytes > 0 && std::memcmp(other->second->data, tensor->data, tensor->bytes) != 0)) {
      return name;
    }
  }
  return "";
}

absl::Status CannotReplay(const std::vector<CheckpointInfo>& bases,
                          const std::optional<int64_t>& first_step) {
  const auto earliest = std::ranges::min_element(bases, {}, &CheckpointInfo::step);
  if (!first_step || earliest == bases.end()) {
    return absl::NotFoundError(kNoBase);
  }
  return absl::NotFoundError(
      absl::StrCat("first_step: ", *first_step, " is not available (earliest: ", earliest->step + 1,
                   "); journal_history_bytes or journal_history_days keeps more"));
}

// Fails if the result differs from the recorded one because the devices do. On the same devices it
// differs only if an operator of the model does not repeat its results.
absl::Status CheckExact(const RecordedOperation& recorded, const OperationResult& result,
                        const std::string& process) {
  if (!recorded.result || ResultText(*recorded.result) == ResultText(PartToRecord(result))) {
    return absl::OkStatus();
  }
  const std::string& before = recorded.segment->description;
  if (process != before) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step: cannot be recomputed exactly: it was recorded with ", before,
        ", this server computes with ", process, " (restore or fork a checkpoint instead)"));
  }
  Log(LogModule::kTraining)
      .warn("operation {} of a journal gives another result when it is applied again",
            recorded.position.sequence);
  return absl::OkStatus();
}

// Returns the position of the last operation that has a result.
std::optional<JournalPosition> FindLast(const std::vector<RecordedOperation>& history) {
  std::optional<JournalPosition> last;
  for (const RecordedOperation& operation : history) {
    last = operation.result && operation.error.empty() ? operation.position : last;
  }
  return last;
}

// Compares a replay with what was recorded.
class Comparison {
 public:
  Comparison(const PastSource& source, Trainer* trainer, int64_t first, ReplayReport* report)
      : source_(source), trainer_(*trainer), first_(first), report_(*report) {}

  // Returns CANCELLED at the first difference.
  absl::Status Compare(const RecordedOperation& recorded, const OperationResult& result) {
    if (recorded.position.sequence <= first_) {
      return absl::OkStatus();
    }
    if (recorded.segment->description != report_.replayed_with) {
      report_.recorded_with = recorded.segment->description;
    }
    report_.last_step = result.step;
    if (recorded.result) {
      ++report_.operations;
      const std::string before = ResultText(*recorded.result);
      const std::string now = ResultText(PartToRecord(result));
      if (before != now) {
        return Differs(recorded, "", before, now);
      }
    }
    for (const CheckpointInfo& info : source_.checkpoints) {
      if (info.sequence == recorded.position.sequence) {
        BRAID_RETURN_IF_ERROR(CompareCheckpoint(recorded, info));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CompareCheckpoint(const RecordedOperation& recorded, const CheckpointInfo& info) {
    BRAID_ASSIGN_OR_RETURN(const StoredCheckpoint read, source_.read_checkpoint(info.name));
    BRAID_ASSIGN_OR_RETURN(const TrainerCheckpoint replayed, trainer_.Checkpoint());
    // Not one of another line with the same sequence.
    if (read.contents.progress.keeps_graph ||
        read.contents.progress.history != replayed.progress.history) {
      return absl::OkStatus();
    }
    ++report_.checkpoints;
    const std::string tensor = DifferentTensor(read.contents.tensors, replayed.tensors);
    return tensor.empty() ? absl::OkStatus() : Differs(recorded, info.name, tensor, tensor);
  }

  absl::Status Differs(const RecordedOperation& at, const std::string& checkpoint,
                       std::string recorded, std::string replayed) {
    report_.difference =
        ReplayDifference{at.position.sequence, at.result ? at.result->step : report_.last_step,
                         checkpoint,           at.summary.batch_id,
                         std::move(recorded),  std::move(replayed)};
    return absl::CancelledError("the replay differs");
  }

  const PastSource& source_;
  Trainer& trainer_;
  const int64_t first_;  // compares the operations after this sequence
  ReplayReport& report_;
};

}  // namespace

absl::StatusOr<PastTrainer> PastTrainer::At(const PastSource& source, JournalPosition position) {
  const Path path = PathTo(source.history, position);
  for (const CheckpointInfo& base : BasesFor(source, path, position)) {
    absl::StatusOr<StoredCheckpoint> read = source.read_checkpoint(base.name);
    if (!read.ok() || !IsFollowedBy(*read, path)) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(LoadedTrainer loaded, source.create(*std::move(read)));
    PastTrainer past(std::move(loaded));
    BRAID_RETURN_IF_ERROR(
        past.Apply(source, After(path, base.sequence),
                   [&past](const RecordedOperation& recorded, const OperationResult& result) {
                     return CheckExact(recorded, result, past.trainer().process());
                   }));
    return past;
  }
  return absl::NotFoundError(kNoBase);
}

absl::Status PastTrainer::Apply(const PastSource& source,
                                absl::Span<const RecordedOperation* const> operations, Use use) {
  for (const RecordedOperation* const recorded : operations) {
    if (source.cancelled()) {
      return absl::CancelledError("the call was cancelled");
    }
    BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(recorded->segment->path));
    BRAID_ASSIGN_OR_RETURN(const std::optional<FoundRecord> found,
                           ReadRecord(file, recorded->offset));
    if (!found) {
      return DamagedRecord(file.path(), recorded->offset);
    }
    BRAID_ASSIGN_OR_RETURN(JournaledOperation operation,
                           ReadOperation(found->record, source.read_request));
    operation.result = recorded->result;
    if (operation.operation.kind == OperationKind::kPublish && !operation.result) {
      return absl::DataLossError(absl::StrCat("the journal has no result for operation ",
                                              recorded->position.sequence, " (Publish)"));
    }
    BRAID_ASSIGN_OR_RETURN(const OperationResult result,
                           loaded_.trainer->Replay(std::move(operation)));
    BRAID_RETURN_IF_ERROR(use(*recorded, result));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayReport> ReplayAndCompare(const PastSource& source, const ReplayRange& range) {
  const std::optional<JournalPosition> end =
      range.last_step ? FindUpdate(source.history, *range.last_step) : FindLast(source.history);
  if (!end) {
    return range.last_step ? StepNotFound(source.history, source.checkpoints, *range.last_step)
                           : absl::NotFoundError("the journal has no operations");
  }
  const Path path = PathTo(source.history, *end);
  if (path.empty()) {
    return absl::NotFoundError(kNoBase);
  }
  const int64_t last_step = path.back()->result ? path.back()->result->step : 0;
  if (range.first_step && *range.first_step > last_step) {
    return absl::NotFoundError(absl::StrCat("first_step: ", *range.first_step,
                                            " is not available (the last one is ", last_step, ")"));
  }
  std::vector<CheckpointInfo> bases = BasesFor(source, path, *end);
  if (!range.first_step) {
    std::ranges::reverse(bases);  // the earliest first
  }
  for (const CheckpointInfo& base : bases) {
    const int64_t from_step = range.first_step ? *range.first_step - 1 : base.step;
    if (base.step > from_step || base.sequence >= end->sequence) {
      continue;
    }
    absl::StatusOr<StoredCheckpoint> read = source.read_checkpoint(base.name);
    if (!read.ok() || !IsFollowedBy(*read, path)) {
      continue;
    }
    int64_t first = base.sequence;
    for (const RecordedOperation* const operation : path) {
      if (operation->result && operation->result->lr && operation->result->step == from_step) {
        first = std::max(first, operation->position.sequence);
      }
    }
    BRAID_ASSIGN_OR_RETURN(LoadedTrainer loaded, source.create(*std::move(read)));
    ReplayReport report;
    report.first_step = from_step + 1;
    report.last_step = from_step;
    report.replayed_with = loaded.trainer->process();
    report.recorded_with = report.replayed_with;
    PastTrainer past(std::move(loaded));
    Comparison comparison(source, &past.trainer(), first, &report);
    const absl::Status replayed =
        past.Apply(source, After(path, base.sequence),
                   [&](const RecordedOperation& recorded, const OperationResult& result) {
                     return comparison.Compare(recorded, result);
                   });
    if (!replayed.ok() && !report.difference) {
      return replayed;
    }
    report.last_step = std::max(report.last_step, report.first_step);
    return report;
  }
  return CannotReplay(bases, range.first_step);
}

}  // namespace braid
