#include "server/jobs/registry_trainer.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// The batch of a step depends on its number only, so the number identifies the payload.
Operation MakeOperation(OperationKind kind, int64_t sequence) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = sequence;
  operation.fingerprint = {static_cast<uint64_t>(sequence), static_cast<uint64_t>(kind)};
  return operation;
}

}  // namespace

std::string JobTrainerName(absl::string_view job_id) {
  return absl::StrCat(kJobTrainerPrefix, job_id);
}

TrainerSpec WithTotalSteps(TrainerSpec spec, int64_t total_steps) {
  auto* const cycle = std::get_if<OneCycleScheduleSpec>(&spec.schedule.kind);
  if (cycle != nullptr && cycle->total_steps == 0) {
    cycle->total_steps = total_steps;
  }
  return spec;
}

absl::StatusOr<JobTrainer::Position> RegistryTrainer::Open(
    const std::string& best, int64_t total_steps, std::function<void()> before_checkpoint) {
  BRAID_ASSIGN_OR_RETURN(const TrainerInfo info, FindOrCreate(total_steps));
  BRAID_RETURN_IF_ERROR(trainers_->SetBeforeCheckpoint(spec_.name, std::move(before_checkpoint)));
  if (!best.empty()) {
    BRAID_RETURN_IF_ERROR(trainers_->KeepCheckpoint(spec_.name, best));
  }
  Position position;
  position.applied = info.applied_sequence;
  position.durable = info.durable_sequence;
  if (position.applied > 0) {
    // A retry of the last step returns its recorded result.
    const absl::StatusOr<OperationResult> last =
        Run(MakeOperation(OperationKind::kStep, position.applied));
    position.loss = last.ok() ? last->loss : std::nullopt;  // Not OK: it was a publication.
  }
  return position;
}

void RegistryTrainer::Close() {
  // Not OK: the trainer was unloaded, or could not be created.
  trainers_->SetBeforeCheckpoint(spec_.name, nullptr).IgnoreError();
}

absl::StatusOr<TrainerInfo> RegistryTrainer::FindOrCreate(int64_t total_steps) {
  BRAID_RETURN_IF_ERROR(WaitFor<absl::StatusOr<CreatedTrainer>>([&](auto done) {
                          trainers_->Create(WithTotalSteps(spec_, total_steps),
                                            request_(total_steps), done);
                        }).status());
  return WaitFor<absl::StatusOr<TrainerInfo>>(
      [&](auto done) { trainers_->GetSettled(spec_.name, done); });
}

void RegistryTrainer::Step(int64_t sequence, TrainingBatch batch, OperationDone done) {
  Operation operation = MakeOperation(OperationKind::kStep, sequence);
  operation.layout = BatchLayout::kRowsFirst;
  operation.inputs = std::move(batch.inputs);
  operation.targets = std::move(batch.targets);
  trainers_->Submit(spec_.name, std::move(operation), std::move(done));
}

absl::StatusOr<EvaluationResult> RegistryTrainer::Evaluate(BatchStream* batches) {
  EvaluationRun run{spec_.name, metrics_, k_, BatchLayout::kRowsFirst};
  while (true) {
    BRAID_ASSIGN_OR_RETURN(std::optional<TrainingBatch> batch, batches->Next());
    if (!batch) {
      return TrainerRegistry::Result(run);
    }
    BRAID_RETURN_IF_ERROR(WaitFor<absl::StatusOr<int64_t>>([&](auto done) {
                            trainers_->Evaluate(&run, std::move(batch->inputs),
                                                std::move(batch->targets), done);
                          }).status());
  }
}

absl::Status RegistryTrainer::SaveCheckpoint() { return Save().status(); }

absl::StatusOr<std::string> RegistryTrainer::KeepBest() {
  BRAID_ASSIGN_OR_RETURN(const CheckpointInfo saved, Save());
  BRAID_RETURN_IF_ERROR(trainers_->KeepCheckpoint(spec_.name, saved.name));
  return saved.name;
}

absl::Status RegistryTrainer::RestoreBest(const std::string& checkpoint) {
  return Restore(checkpoint);
}

absl::StatusOr<int64_t> RegistryTrainer::Publish(int64_t step) {
  Operation operation = MakeOperation(OperationKind::kPublish, step + 1);
  operation.wait_durable = true;
  BRAID_ASSIGN_OR_RETURN(const OperationResult result, Run(std::move(operation)));
  if (result.durability.durability == Durability::kFailed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "version ", result.version, " is served, but was not written: ", result.durability.reason));
  }
  return result.version;
}

void RegistryTrainer::Release() {
  Close();  // before the trainer cannot be found any more
  const auto unloaded =
      WaitFor<absl::Status>([&](auto done) { trainers_->Unload(spec_.name, done); });
  if (!unloaded.ok()) {
    Log(LogModule::kJobs)
        .warn("trainer '{}' stays in memory: {}", spec_.name, std::string(unloaded.message()));
  }
}

absl::StatusOr<CheckpointInfo> RegistryTrainer::Save() {
  return WaitFor<absl::StatusOr<CheckpointInfo>>(
      [&](auto done) { trainers_->SaveCheckpoint(spec_.name, done); });
}

absl::Status RegistryTrainer::Restore(const std::string& checkpoint) {
  return WaitFor<absl::StatusOr<CheckpointInfo>>(
             [&](auto done) { trainers_->RestoreCheckpoint(spec_.name, checkpoint, done); })
      .status();
}

absl::StatusOr<OperationResult> RegistryTrainer::Run(Operation operation) {
  return WaitFor<absl::StatusOr<OperationResult>>(
      [&](auto done) { trainers_->Submit(spec_.name, std::move(operation), done); });
}

}  // namespace braid
