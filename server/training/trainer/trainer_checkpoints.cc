// How a trainer's state gets into checkpoints and back.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/random_id.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"
#include "server/training/optim/optimizer_spec.h"
#include "server/training/trainer/trainer.h"

namespace braid {
namespace {

absl::Status NoStore(const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat(
      "trainer '", name, "' has no checkpoints: the server was started without --data_dir"));
}

}  // namespace

absl::StatusOr<TrainerCheckpoint> Trainer::MakeCheckpoint(bool before_forward) {
  const Sequence& sequence = before_forward ? *before_forward_ : sequence_;
  TrainerCheckpoint checkpoint;
  BRAID_ASSIGN_OR_RETURN(checkpoint.tensors,
                         before_forward ? model_->SnapshotBeforeForward() : model_->Snapshot());
  TrainerProgress& progress = checkpoint.progress;
  progress.model = spec_.model;
  progress.optimizer = std::string(OptimizerName(spec_.optimizer));
  progress.sequence = sequence.applied();
  progress.fingerprint = sequence.fingerprint();
  progress.reply = sequence.result();
  progress.last_operator = sequence.last_operator();
  progress.schedule = schedule_.state();
  progress.loss_sum = loss_sum_;
  progress.losses = losses_;
  const absl::MutexLock lock(&mu_);
  progress.step = step_;
  progress.skipped = skipped_;
  return checkpoint;
}

void Trainer::StartCheckpoint(bool before_forward, SaveDone done) {
  const absl::Time start = absl::Now();
  absl::StatusOr<TrainerCheckpoint> checkpoint = MakeCheckpoint(before_forward);
  metrics_.RecordCheckpointPause(absl::Now() - start);
  operations_since_checkpoint_ = 0;
  last_checkpoint_ = start;
  if (!checkpoint.ok()) {
    metrics_.RecordCheckpoint(/*written=*/false, absl::Now() - start);
    done(checkpoint.status());
    return;
  }
  checkpointer_->Write(*std::move(checkpoint), [this, start, done = std::move(done)](
                                                   absl::StatusOr<CheckpointInfo> info) mutable {
    if (info.ok()) {
      const absl::MutexLock lock(&mu_);
      durable_ = info->sequence;
      checkpoint_ = *info;
      metrics_.SetLastCheckpoint(info->created);
    } else {
      Log(LogModule::kTraining)
          .error("trainer '{}': a checkpoint was not written: {}", spec_.name,
                 std::string(info.status().message()));
    }
    metrics_.RecordCheckpoint(info.ok(), absl::Now() - start);
    done(std::move(info));
    // What became due meanwhile may have been the last operation for a long time.
    LookForDue(absl::Now());
  });
}

void Trainer::StartCheckpointIfDue(absl::Time now) {
  const CheckpointPolicy& policy = spec_.checkpoints;
  if (checkpointer_ == nullptr || operations_since_checkpoint_ == 0) {
    return;
  }
  const bool by_count =
      policy.every_operations > 0 && operations_since_checkpoint_ >= policy.every_operations;
  const bool by_time =
      policy.every > absl::ZeroDuration() && now - last_checkpoint_ >= policy.every;
  // One at a time: a slow disk makes them rarer, not more. Not between a Forward and its Backward,
  // which could not be sent again after a restart: no checkpoint holds a graph.
  if ((by_count || by_time) && checkpointer_->waiting() == 0 && !model_->keeps_graph()) {
    StartCheckpoint(/*before_forward=*/false, [](const absl::StatusOr<CheckpointInfo>&) {});
  }
}

void Trainer::Tick(absl::Time now) {
  if (checkpointer_ != nullptr && spec_.checkpoints.every > absl::ZeroDuration()) {
    LookForDue(now);
  }
}

void Trainer::LookForDue(absl::Time now) {
  const absl::MutexLock lock(&mu_);
  // A trainer that ends joins its thread before the one that writes checkpoints.
  if (deleted_ || look_waits_) {
    return;
  }
  look_waits_ = true;
  thread_.Post([this, now] {
    {
      const absl::MutexLock begun(&mu_);
      look_waits_ = false;
    }
    if (CheckAlive().ok()) {
      StartCheckpointIfDue(now);
    }
  });
}

void Trainer::SaveCheckpoint(SaveDone done) { Save(/*last=*/false, std::move(done)); }

void Trainer::SaveLast(SaveDone done) { Save(/*last=*/true, std::move(done)); }

bool Trainer::awaits_backward() const {
  const CheckpointPolicy& policy = spec_.checkpoints;
  const bool client_sends_again =
      policy.every_operations > 0 || policy.every > absl::ZeroDuration();
  return client_sends_again && model_->keeps_graph() && before_forward_.has_value();
}

void Trainer::Save(bool last, SaveDone done) {
  if (checkpointer_ == nullptr) {
    done(NoStore(spec_.name));
    return;
  }
  auto shared = std::make_shared<SaveDone>(std::move(done));
  const absl::Status queued = Enqueue([this, last, shared] {
    if (absl::Status alive = CheckAlive(); !alive.ok()) {
      (*shared)(std::move(alive));
      return;
    }
    const bool before_forward = last && awaits_backward();
    if (const auto written = WrittenAt((before_forward ? *before_forward_ : sequence_).applied());
        last && written) {
      (*shared)(*written);
      return;
    }
    StartCheckpoint(before_forward,
                    [shared](absl::StatusOr<CheckpointInfo> info) { (*shared)(std::move(info)); });
  });
  if (!queued.ok()) {
    (*shared)(queued);
  }
}

std::optional<CheckpointInfo> Trainer::WrittenAt(int64_t sequence) const {
  const absl::MutexLock lock(&mu_);
  return durable_ == sequence ? std::optional(checkpoint_) : std::nullopt;
}

absl::StatusOr<std::vector<CheckpointInfo>> Trainer::ListCheckpoints() const {
  if (checkpointer_ == nullptr) {
    return NoStore(spec_.name);
  }
  return checkpointer_->List();
}

void Trainer::RestoreCheckpoint(std::string name, SaveDone done) {
  Restore(std::move(name), /*resumes=*/false, std::move(done));
}

void Trainer::Resume(SaveDone done) { Restore("", /*resumes=*/true, std::move(done)); }

void Trainer::Restore(std::string name, bool resumes, SaveDone done) {
  if (checkpointer_ == nullptr) {
    done(NoStore(spec_.name));
    return;
  }
  auto shared = std::make_shared<SaveDone>(std::move(done));
  // Also of a trainer that is torn: that is the way back.
  const absl::Status queued = Enqueue([this, shared, name = std::move(name), resumes] {
    absl::Status there = CheckThere();
    (*shared)(there.ok() ? RestoreNow(name, resumes) : std::move(there));
  });
  if (!queued.ok()) {
    (*shared)(queued);
  }
}

absl::StatusOr<CheckpointInfo> Trainer::RestoreNow(const std::string& name, bool resumes) {
  BRAID_ASSIGN_OR_RETURN(Checkpointer::Loaded loaded, checkpointer_->Read(name));
  TrainerProgress& progress = loaded.checkpoint.progress;
  const auto other = [&](const char* what, const std::string& theirs, absl::string_view ours) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint '", loaded.info.name, "' is of ",
                                                      what, " '", theirs, "', the trainer of '",
                                                      ours, "'"));
  };
  if (progress.model != spec_.model) {
    return other("model", progress.model, spec_.model);
  }
  if (progress.optimizer != OptimizerName(spec_.optimizer)) {
    return other("optimizer", progress.optimizer, OptimizerName(spec_.optimizer));
  }
  Schedule schedule = schedule_;
  BRAID_RETURN_IF_ERROR(schedule.Load(progress.schedule));
  BRAID_RETURN_IF_ERROR(model_->CheckSnapshot(loaded.checkpoint.tensors));
  if (!resumes) {
    progress.last_operator = RandomId();
    // Before anything changes: the disk may be full.
    BRAID_RETURN_IF_ERROR(
        checkpointer_->MakeNewest(loaded.info.name, WriteState(loaded.checkpoint)));
  }
  if (const absl::Status restored = model_->Restore(loaded.checkpoint.tensors); !restored.ok()) {
    return Tear("a restoration", restored);
  }
  schedule_ = std::move(schedule);
  loss_sum_ = progress.loss_sum;
  losses_ = progress.losses;
  step_time_ = absl::ZeroDuration();
  operations_since_checkpoint_ = 0;
  last_checkpoint_ = absl::Now();
  before_forward_.reset();
  sequence_ = Sequence();
  sequence_.Record(progress.sequence, progress.fingerprint, progress.reply, progress.last_operator);
  const absl::MutexLock lock(&mu_);
  torn_ = absl::OkStatus();
  step_ = progress.step;
  skipped_ = progress.skipped;
  applied_ = progress.sequence;
  last_operator_ = progress.last_operator;
  durable_ = progress.sequence;
  checkpoint_ = loaded.info;
  UpdateInfo();
  metrics_.SetLearningRate(lr_);
  metrics_.SetLastCheckpoint(loaded.info.created);
  return loaded.info;
}

}  // namespace braid
