#include "server/training/trainer/checkpointer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/telemetry/log.h"

namespace braid {

absl::StatusOr<StoredCheckpoint> ReadCheckpoint(CheckpointStore& store, const std::string& name) {
  BRAID_ASSIGN_OR_RETURN(LoadedCheckpoint loaded,
                         name.empty() ? store.ReadNewest() : store.Read(name));
  StoredCheckpoint read{loaded.info, {}, std::move(loaded.files)};
  BRAID_ASSIGN_OR_RETURN(read.contents, ReadTrainerCheckpoint(loaded.state, read.files));
  return read;
}

absl::StatusOr<StoredCheckpoint> ReadForRestart(CheckpointStore& store) {
  BRAID_ASSIGN_OR_RETURN(StoredCheckpoint newest, ReadCheckpoint(store, /*name=*/""));
  if (!newest.contents.progress.keeps_graph) {
    return newest;
  }
  std::vector<CheckpointInfo> infos = store.List();
  std::ranges::reverse(infos);
  for (const CheckpointInfo& info : infos) {
    if (info.line != newest.info.line || info.sequence >= newest.info.sequence) {
      continue;
    }
    absl::StatusOr<StoredCheckpoint> earlier = ReadCheckpoint(store, info.name);
    if (earlier.ok() && !earlier->contents.progress.keeps_graph) {
      return earlier;
    }
  }
  return newest;
}

Checkpointer::Checkpointer(std::unique_ptr<CheckpointStore> store, const HostModel* model,
                           int64_t keep, std::function<void(int64_t sequence)> wait,
                           std::function<void(CheckpointRetention*)> retain, TaskPool* pool)
    : store_(std::move(store)),
      model_(model),
      keep_(keep),
      wait_(std::move(wait)),
      retain_(std::move(retain)),
      queue_(pool) {}

void Checkpointer::Write(TrainerCheckpoint checkpoint, Done done) {
  const absl::MutexLock lock(&mu_);
  ++waiting_;
  queue_.Post([this, checkpoint = std::move(checkpoint), done = std::move(done)]() mutable {
    absl::StatusOr<CheckpointInfo> info = WriteNow(std::move(checkpoint));
    {
      const absl::MutexLock written(&mu_);
      --waiting_;
    }
    done(std::move(info));
  });
}

int64_t Checkpointer::waiting() const {
  const absl::MutexLock lock(&mu_);
  return waiting_;
}

absl::StatusOr<CheckpointInfo> Checkpointer::WriteNow(TrainerCheckpoint checkpoint) {
  wait_(checkpoint.progress.sequence);
  BRAID_RETURN_IF_ERROR(ShareBase());
  absl::StatusOr<CheckpointInfo> info =
      store_->Write(checkpoint.progress.step, checkpoint.progress.sequence, WriteState(checkpoint),
                    CheckpointFiles(checkpoint), checkpoint.automatic);
  const bool keeps_graph = checkpoint.progress.keeps_graph;
  // The trainer copies its weights if its next update finds them in use.
  checkpoint = {};
  if (!info.ok()) {
    shares_base_ = false;  // The shared file may be gone.
    return info;
  }
  if (!keeps_graph) {
    whole_ = info->name;
  }
  Retain();
  return info;
}

void Checkpointer::Retain() {
  CheckpointRetention retention;
  retention.keep = keep_;
  retention.whole = whole_;
  retain_(&retention);
  {
    const absl::MutexLock lock(&mu_);
    retention.name = kept_;
  }
  if (const absl::Status retained = store_->Retain(retention); !retained.ok()) {
    Log(LogModule::kTraining)
        .warn("checkpoints: cannot delete old ones: {}", std::string(retained.message()));
  }
}

absl::Status Checkpointer::ShareBase() {
  if (!shares_base_) {
    BRAID_RETURN_IF_ERROR(store_->Share(BaseFiles(model_->Files())));
    shares_base_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointInfo> Checkpointer::WriteRestored(const TrainerCheckpoint& checkpoint) {
  const TrainerProgress& progress = checkpoint.progress;
  return WaitFor<absl::StatusOr<CheckpointInfo>>([&](auto done) {
    queue_.Post([&, done] {
      absl::Status shared = ShareBase();
      absl::StatusOr<CheckpointInfo> written =
          shared.ok() ? store_->WriteRestored(progress.step, progress.sequence,
                                              WriteState(checkpoint), CheckpointFiles(checkpoint))
                      : std::move(shared);
      shares_base_ = shares_base_ && written.ok();  // The shared file may be gone.
      done(EndRestore(std::move(written)));
    });
  });
}

void Checkpointer::SetWhole(std::string name) {
  queue_.Post([this, name = std::move(name)]() mutable { whole_ = std::move(name); });
}

void Checkpointer::Keep(std::string name) {
  const absl::MutexLock lock(&mu_);
  kept_ = std::move(name);
}

absl::Status Checkpointer::Use(absl::FunctionRef<absl::Status(CheckpointStore&)> use) {
  return WaitFor<absl::Status>(
      [&](auto done) { queue_.Post([this, use, done] { done(use(*store_)); }); });
}

absl::StatusOr<StoredCheckpoint> Checkpointer::Read(const std::string& name) {
  return WaitFor<absl::StatusOr<StoredCheckpoint>>([&](auto done) {
    queue_.Post([this, &name, done] { done(ReadCheckpoint(*store_, name)); });
  });
}

absl::StatusOr<CheckpointInfo> Checkpointer::MakeNewest(const std::string& name,
                                                        const std::string& state) {
  return WaitFor<absl::StatusOr<CheckpointInfo>>([&](auto done) {
    queue_.Post([&, done] { done(EndRestore(store_->MakeNewest(name, state))); });
  });
}

absl::StatusOr<CheckpointInfo> Checkpointer::EndRestore(absl::StatusOr<CheckpointInfo> newest) {
  if (newest.ok()) {
    whole_ = newest->name;
    Retain();
  }
  return newest;
}

}  // namespace braid
