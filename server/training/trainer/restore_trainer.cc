#include "server/training/trainer/restore_trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/batching/batch_queue.h"
#include "server/models/config/version_config.h"
#include "server/serving/load_model.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/model_files.h"
#include "server/telemetry/log.h"
#include "server/training/step/placement.h"
#include "server/training/trainer/trainer.h"

namespace braid {
namespace {

// The model of checkpoint `name`, the newest for an empty name, on the workers of `served`.
absl::StatusOr<LoadedVersion> LoadCheckpointed(CheckpointStore& store, const std::string& name,
                                               const BatchQueue& served) {
  BRAID_ASSIGN_OR_RETURN(const LoadedCheckpoint loaded,
                         name.empty() ? store.ReadNewest() : store.Read(name));
  for (const char* file : {kPackageFile, kTorchScriptFile}) {
    if (const auto found = loaded.files.find(file); found != loaded.files.end()) {
      return LoadOnEach({found->second, "", served.config().name, served.version()},
                        DeclaredConfig(served.config()), served.replicas().workers());
    }
  }
  return absl::DataLossError(
      absl::StrCat("checkpoint '", loaded.info.name, "' holds no model's file"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Trainer>> RestoreTrainer(const StoredTrainer& stored,
                                                        TrainerSpec spec,
                                                        const std::string& checkpoint,
                                                        const TrainerStorage& storage,
                                                        const TrainerServices& services) {
  spec.name = stored.name;
  spec.base_version = stored.base_version;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served,
                         services.models->FindReplicas(spec.model, 0));
  if (LeaveOutMissingDevices(served->replicas(), &spec)) {
    Log(LogModule::kTraining)
        .warn("trainer '{}' was on devices that this server has not, and goes on on others",
              spec.name);
  }
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointStore> store,
                         storage.OpenCheckpoints(stored.name));
  // The version that it began from may be served no more, or be another by now.
  BRAID_ASSIGN_OR_RETURN(const LoadedVersion loaded, LoadCheckpointed(*store, checkpoint, *served));
  BRAID_ASSIGN_OR_RETURN(
      std::shared_ptr<Trainer> trainer,
      Trainer::Create(std::move(spec), stored.id, {loaded.config, loaded.version, loaded.replicas},
                      std::move(store), services));
  BRAID_RETURN_IF_ERROR(WaitFor<absl::StatusOr<CheckpointInfo>>([&](auto done) {
                          if (checkpoint.empty()) {
                            trainer->Resume(std::move(done));
                          } else {
                            trainer->RestoreCheckpoint(checkpoint, std::move(done));
                          }
                        }).status());
  return trainer;
}

}  // namespace braid
