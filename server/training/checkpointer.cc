#include "server/training/checkpointer.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/parallel/host_copy.h"
#include "server/telemetry/log.h"

namespace braid {

absl::Status LoadState(const std::vector<StateTensor>& state, Replica& replica) {
  const c10::AutoGradMode no_grad(false);
  std::map<std::string, at::Tensor> values;
  for (const StateTensor& entry : state) {
    values[entry.tensor.name] = View(entry.tensor);
  }
  for (const StateEntry& entry : replica.state()) {
    const auto found = values.find(entry.name);
    if (found == values.end()) {
      continue;  // outside the stages that are trained
    }
    if (found->second.sizes() != entry.value.sizes()) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", entry.name, "' has shape ", ShapeString(entry.value.sizes().vec()),
                       " in the served model and ", ShapeString(found->second.sizes().vec()),
                       " in the trainer"));
    }
    entry.value.copy_(found->second);
  }
  return absl::OkStatus();
}

Checkpointer::Checkpointer(std::unique_ptr<CheckpointStore> store,
                           std::unique_ptr<Replica> exporter, int64_t keep)
    : store_(std::move(store)),
      exporter_(std::move(exporter)),
      keep_(keep),
      thread_("checkpoints") {}

void Checkpointer::Write(TrainerCheckpoint checkpoint, Done done) {
  const absl::MutexLock lock(&mu_);
  ++waiting_;
  thread_.Post([this, checkpoint = std::move(checkpoint), done = std::move(done)]() mutable {
    absl::StatusOr<CheckpointInfo> info = WriteNow(checkpoint);
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

absl::StatusOr<CheckpointInfo> Checkpointer::WriteNow(const TrainerCheckpoint& checkpoint) {
  absl::StatusOr<CheckpointInfo> info;
  const absl::Status caught = CatchTorch([&]() -> absl::Status {
    BRAID_RETURN_IF_ERROR(LoadState(checkpoint.tensors.model, *exporter_));
    std::vector<NewFile> files = CheckpointFiles(checkpoint);
    for (NewFile& file : exporter_->Files()) {
      files.push_back(std::move(file));
    }
    info = store_->Write(checkpoint.progress.step, checkpoint.progress.sequence,
                         WriteState(checkpoint), files);
    return info.status();
  });
  BRAID_RETURN_IF_ERROR(caught);
  if (const absl::Status retained = store_->Retain(keep_); !retained.ok()) {
    Log(LogModule::kTraining).warn("old checkpoints stay: {}", std::string(retained.message()));
  }
  return info;
}

absl::StatusOr<Checkpointer::Loaded> Checkpointer::Read(const std::string& name) {
  absl::StatusOr<Loaded> result = absl::UnknownError("");
  absl::Notification read;
  thread_.Post([&] {
    result = [&]() -> absl::StatusOr<Loaded> {
      BRAID_ASSIGN_OR_RETURN(LoadedCheckpoint loaded,
                             name.empty() ? store_->ReadNewest() : store_->Read(name));
      Loaded whole{loaded.info, {}};
      BRAID_ASSIGN_OR_RETURN(whole.checkpoint, ReadTrainerCheckpoint(loaded.state, loaded.files));
      return whole;
    }();
    read.Notify();
  });
  read.WaitForNotification();
  return result;
}

absl::Status Checkpointer::MakeNewest(const std::string& name) {
  absl::Status result;
  absl::Notification made;
  thread_.Post([&] {
    result = store_->MakeNewest(name);
    made.Notify();
  });
  made.WaitForNotification();
  return result;
}

}  // namespace braid
