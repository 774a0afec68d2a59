#include "server/training/trainer/trainer_registry.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/random_id.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/base/wait_for.h"
#include "server/batching/batch_queue.h"
#include "server/devices/run_on.h"
#include "server/models/config/version_config.h"
#include "server/parallel/host_copy.h"
#include "server/serving/load_model.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/names.h"
#include "server/telemetry/log.h"
#include "server/training/step/evaluation.h"
#include "server/training/step/placement.h"
#include "server/training/trainer/checkpoint_format.h"
#include "server/training/trainer/host_model.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/trainer.h"
#include "server/training/trainer/trainer_storage.h"

namespace braid {
namespace {

// Period of Tick().
constexpr absl::Duration kTick = absl::Milliseconds(200);

absl::Status CheckName(absl::string_view name) {
  if (IsPlainName(name)) {
    return absl::OkStatus();
  }
  return InvalidField("name",
                      absl::StrCat("invalid trainer name '", absl::CHexEscape(Excerpt(name)),
                                   "' (expected 1 to 128 letters, digits, '_', '-' and '.', not "
                                   "starting with '.')"));
}

absl::Status NotFound(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat("unknown trainer '", Excerpt(name), "'"));
}

// Does not say whether the trainer is running or stored, because it may be another user's.
absl::Status NameIsTaken(absl::string_view name) {
  return absl::AlreadyExistsError(absl::StrCat("name: trainer '", name,
                                               "' already exists (choose another name, or pass "
                                               "exist_ok=True to continue with it; to restore "
                                               "a stored trainer: braid checkpoints restore ",
                                               name, ")"));
}

// Its checkpoints may be intact, so the name must not be reused.
absl::Status IsDamaged(absl::string_view name, const absl::Status& damage) {
  return absl::DataLossError(absl::StrCat(
      "name: stored trainer '", name, "' is damaged (", damage.message(),
      "): repair its trainer.json and restart the server, delete it, or choose another name"));
}

// Returns true for a stored trainer without a first checkpoint: the server crashed before the
// client got a reply to Create().
bool IsIncomplete(const TrainerStorage& storage, const std::string& name) {
  const auto store = storage.OpenCheckpoints(name);
  return store.ok() && (*store)->List().empty() && (*store)->damaged().empty();
}

absl::StatusOr<CheckpointInfo> SaveAndWait(Trainer& trainer) {
  return WaitFor<absl::StatusOr<CheckpointInfo>>(
      [&](auto done) { trainer.SaveCheckpoint(std::move(done)); });
}

absl::StatusOr<LoadedCheckpoint> ReadNamed(CheckpointStore& store, const std::string& name) {
  return name.empty() ? store.ReadNewest() : store.Read(name);
}

// Loads the model to which the weights of a checkpoint belong on the workers of `served`.
absl::StatusOr<LoadedVersion> LoadBase(const LoadedCheckpoint& checkpoint,
                                       const BatchQueue& served) {
  BRAID_ASSIGN_OR_RETURN(const std::string path, BasePath(checkpoint.files));
  return LoadOnEach({path, "", served.config().name, served.version()},
                    DeclaredConfig(served.config()), served.replicas().workers());
}

// Loads the model of checkpoint `name` with its weights on the workers of `served`; an empty name
// means the newest.
absl::StatusOr<LoadedVersion> LoadTrained(CheckpointStore& store, const std::string& name,
                                          const BatchQueue& served) {
  BRAID_ASSIGN_OR_RETURN(const LoadedCheckpoint checkpoint, ReadNamed(store, name));
  BRAID_ASSIGN_OR_RETURN(LoadedVersion loaded, LoadBase(checkpoint, served));
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> weights, ReadWeights(checkpoint.files));
  std::vector<StateEntry> state;
  for (const HostTensor& weight : weights) {
    state.push_back({weight.name, View(weight).clone()});
  }
  // Replicas of one file share tensors, so they are not changed but replaced.
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<HostModel> base, HostModel::CopyOf(loaded.replicas));
  const std::vector<Worker*> workers = loaded.replicas.workers();
  std::vector<std::unique_ptr<Replica>> trained(workers.size());
  for (size_t r = 0; r < workers.size(); ++r) {
    BRAID_RETURN_IF_ERROR(RunOnEach({workers[r]}, Phase::kLoad, [&](size_t) -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(trained[r], base->With(state, workers[r]->torch_device()));
      return absl::OkStatus();
    }));
  }
  loaded.replicas = ReplicaSet(workers, std::move(trained));
  return loaded;
}

// Creates the trainer `stored` from `spec` and restores `checkpoint`; an empty name means the
// newest. Blocks. NOT_FOUND if there is no such checkpoint or the model is not served, DATA_LOSS if
// the files cannot be read.
absl::StatusOr<std::shared_ptr<Trainer>> RestoreTrainer(const StoredTrainer& stored,
                                                        TrainerSpec spec,
                                                        const std::string& checkpoint,
                                                        const TrainerStorage& storage,
                                                        const TrainerServices& services) {
  spec.name = stored.name;
  spec.base_version = stored.base_version;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served,
                         services.models->FindReplicas(spec.model, 0));
  if (RemoveMissingDevices(served->replicas(), &spec)) {
    Log(LogModule::kTraining)
        .warn("trainer '{}': moved to other devices (the server does not have all of its devices)",
              spec.name);
  }
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointStore> store,
                         storage.OpenCheckpoints(stored.name));
  // The version that it started from may no longer be served, or may have changed.
  BRAID_ASSIGN_OR_RETURN(const LoadedCheckpoint read, ReadNamed(*store, checkpoint));
  BRAID_ASSIGN_OR_RETURN(const LoadedVersion loaded, LoadBase(read, *served));
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

}  // namespace

TrainerRegistry::TrainerRegistry(const TrainerServices& services,
                                 std::unique_ptr<TrainerStorage> storage, SpecReader read_spec,
                                 size_t most)
    : services_(services),
      storage_(std::move(storage)),
      read_spec_(std::move(read_spec)),
      most_(most),
      thread_("trainers"),
      clock_([this] { RunClock(); }) {}

TrainerRegistry::~TrainerRegistry() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  clock_.join();
}

void TrainerRegistry::RunClock() {
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stop_), kTick)) {
        return;
      }
    }
    thread_.Post([this] { Tick(); });
  }
}

void TrainerRegistry::Tick() {
  const absl::Time now = absl::Now();
  for (const std::shared_ptr<Trainer>& trainer : All()) {
    trainer->Tick(now);
    const absl::Duration timeout = trainer->spec().idle_timeout;
    if (timeout > absl::ZeroDuration() && now - trainer->last_used() >= timeout) {
      Expire(trainer);
    }
  }
}

absl::Status TrainerRegistry::Retire(const std::shared_ptr<Trainer>& trainer) {
  const std::string name = trainer->spec().name;
  BRAID_ASSIGN_OR_RETURN(const CheckpointInfo saved, SaveAndWait(*trainer));
  BRAID_ASSIGN_OR_RETURN(StoredTrainer stored, storage_->Find(name));
  if (!trainer->RetireAt(saved.sequence)) {
    return absl::FailedPreconditionError(absl::StrCat("trainer '", name, "' is in use"));
  }
  stored.expired = true;
  if (const absl::Status status = storage_->Write(stored); !status.ok()) {
    Log(LogModule::kTraining)
        .error("trainer '{}': the next start restores it: {}", name, std::string(status.message()));
  }
  Take(name).reset();
  return absl::OkStatus();
}

// Requires storage: without it no trainer has an idle timeout.
void TrainerRegistry::Expire(const std::shared_ptr<Trainer>& trainer) {
  const std::string name = trainer->spec().name;
  const absl::Status status = Retire(trainer);
  if (status.ok()) {
    Log(LogModule::kTraining)
        .info("trainer '{}': expired after {} without use; RestoreCheckpoint restores it", name,
              absl::FormatDuration(trainer->spec().idle_timeout));
  } else if (!absl::IsFailedPrecondition(status)) {  // else it has been used in the meantime
    Log(LogModule::kTraining)
        .error("trainer '{}': not expired, its state cannot be saved: {}", name,
               std::string(status.message()));
  }
}

void TrainerRegistry::Unload(std::string name, Done done) {
  thread_.Post([this, name = std::move(name), done = std::move(done)]() mutable {
    const absl::StatusOr<std::shared_ptr<Trainer>> trainer = Find(name);
    if (!trainer.ok()) {
      done(absl::OkStatus());
    } else if (storage_ == nullptr) {
      done(absl::FailedPreconditionError(
          absl::StrCat("trainer '", name, "' cannot be unloaded: there is no --data_dir")));
    } else {
      done(Retire(*trainer));
    }
  });
}

std::vector<std::shared_ptr<Trainer>> TrainerRegistry::All() const {
  const absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Trainer>> all;
  for (const auto& [name, trainer] : trainers_) {
    all.push_back(trainer);
  }
  return all;
}

std::shared_ptr<Trainer> TrainerRegistry::Take(const std::string& name) {
  const absl::MutexLock lock(&mu_);
  const auto found = trainers_.find(name);
  if (found == trainers_.end()) {
    return nullptr;
  }
  std::shared_ptr<Trainer> trainer = std::move(found->second);
  trainers_.erase(found);
  return trainer;
}

void TrainerRegistry::RestoreStored() {
  if (storage_ == nullptr) {
    return;
  }
  absl::StatusOr<std::vector<StoredTrainer>> stored = storage_->List();
  if (!stored.ok()) {
    Log(LogModule::kTraining)
        .error("trainers: cannot list the data directory: {}",
               std::string(stored.status().message()));
    return;
  }
  for (const StoredTrainer& trainer : *stored) {
    if (trainer.expired) {
      continue;
    }
    const absl::Status status = RestoreOne(trainer, /*checkpoint=*/"");
    if (absl::IsNotFound(status) && IsIncomplete(*storage_, trainer.name)) {
      storage_->Remove(trainer.name)
          .IgnoreError();  // else the next Create() of this name reports it
      continue;
    }
    if (status.ok()) {
      const TrainerInfo info = *Get(trainer.name);
      Log(LogModule::kTraining)
          .info("trainer '{}': restored at step {}, sequence {}", trainer.name, info.step,
                info.applied_sequence);
    } else {
      Log(LogModule::kTraining)
          .error("trainer '{}': cannot be restored, left on disk: {}", trainer.name,
                 std::string(status.message()));
    }
  }
}

bool TrainerRegistry::SaveAll() {
  bool all = true;
  for (const std::shared_ptr<Trainer>& trainer : All()) {
    const TrainerInfo info = trainer->info();
    if (storage_ == nullptr || info.applied_sequence == info.durable_sequence) {
      continue;
    }
    const auto saved = WaitFor<absl::StatusOr<CheckpointInfo>>(
        [&](auto done) { trainer->SaveLast(std::move(done)); });
    if (!saved.ok()) {
      Log(LogModule::kTraining)
          .error("trainer '{}': the last checkpoint was not written: {}", info.spec.name,
                 std::string(saved.status().message()));
      all = false;
    }
  }
  return all;
}

void TrainerRegistry::Create(TrainerSpec spec, std::string request, CreateDone done) {
  thread_.Post([this, spec = std::move(spec), request = std::move(request),
                done = std::move(done)]() mutable { done(CreateNow(std::move(spec), request)); });
}

void TrainerRegistry::Delete(std::string name, Done done) {
  thread_.Post(
      [this, name = std::move(name), done = std::move(done)]() mutable { done(DeleteNow(name)); });
}

void TrainerRegistry::Rollback(std::string model, int64_t version,
                               absl::AnyInvocable<void(absl::StatusOr<VersionChange>)> done) {
  thread_.Post([this, model = std::move(model), version, done = std::move(done)]() mutable {
    done(services_.publisher->Rollback(model, version));
  });
}

absl::Status TrainerRegistry::CheckRoom() const {
  const absl::MutexLock lock(&mu_);
  return trainers_.size() < most_
             ? absl::OkStatus()
             : absl::ResourceExhaustedError(absl::StrCat("the server has ", trainers_.size(),
                                                         " trainers, the maximum is ", most_,
                                                         " (--max_trainers): delete a trainer, or "
                                                         "set idle_timeout_seconds to delete idle "
                                                         "ones"));
}

absl::Status TrainerRegistry::UseSource(
    const TrainerSpec& spec, absl::FunctionRef<absl::Status(CheckpointStore&)> use) const {
  const auto check_model = [&](const std::string& model) {
    return model == spec.model
               ? absl::OkStatus()
               : InvalidField("from_trainer",
                              absl::StrCat("'", spec.from_trainer, "' trains model '", model,
                                           "' (expected a trainer of '", spec.model, "')"));
  };
  if (const auto live = Find(spec.from_trainer); live.ok()) {
    BRAID_RETURN_IF_ERROR(check_model((*live)->spec().model));
    return (*live)->UseCheckpoints(use);
  }
  const absl::StatusOr<StoredTrainer> stored =
      storage_ != nullptr && CheckName(spec.from_trainer).ok() ? storage_->Find(spec.from_trainer)
                                                               : NotFound(spec.from_trainer);
  if (absl::IsNotFound(stored.status())) {
    return absl::NotFoundError(
        absl::StrCat("from_trainer: ", NotFound(spec.from_trainer).message()));
  }
  BRAID_RETURN_IF_ERROR(stored.status());
  BRAID_ASSIGN_OR_RETURN(const TrainerSpec other, read_spec_(stored->request));
  BRAID_RETURN_IF_ERROR(check_model(other.model));
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                         storage_->OpenCheckpoints(spec.from_trainer));
  return use(*store);
}

absl::Status TrainerRegistry::Check(const TrainerSpec& spec, const TrainerUse& use) const {
  BRAID_ASSIGN_OR_RETURN(const ModelConfig config,
                         services_.publisher->FindConfig(spec.model, spec.base_version));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> current,
                         services_.models->FindReplicas(spec.model, 0));
  BRAID_RETURN_IF_ERROR(
      Trainer::Check(spec, {config, current->version(), current->replicas()}, use));
  if (spec.from_trainer.empty()) {
    return absl::OkStatus();
  }
  return UseSource(spec, [&](CheckpointStore& store) {
    const std::vector<CheckpointInfo> all = store.List();
    const bool found = spec.from_checkpoint.empty() ? !all.empty()
                                                    : std::ranges::count(all, spec.from_checkpoint,
                                                                         &CheckpointInfo::name) > 0;
    return found ? absl::OkStatus()
                 : absl::NotFoundError(absl::StrCat("from_checkpoint: trainer '", spec.from_trainer,
                                                    "' has no checkpoint '", spec.from_checkpoint,
                                                    "'"));
  });
}

absl::StatusOr<CreatedTrainer> TrainerRegistry::CreateNow(TrainerSpec spec,
                                                          const std::string& request) {
  if (spec.model.empty()) {
    return InvalidField("model", "is empty (expected the name of a served model)");
  }
  if (spec.name.empty()) {
    spec.name = PlainName(spec.model);
  }
  BRAID_RETURN_IF_ERROR(CheckName(spec.name));
  if (const auto there = Find(spec.name); there.ok()) {
    TrainerInfo info = (*there)->info();
    const bool retry = !spec.request_id.empty() && info.spec.request_id == spec.request_id;
    // The caller may train `spec.model`, so it may only learn about that model's trainers.
    if (info.spec.model != spec.model || !(retry || spec.exist_ok)) {
      return NameIsTaken(spec.name);
    }
    return CreatedTrainer{std::move(info), retry};
  }
  BRAID_RETURN_IF_ERROR(CheckRoom());
  const std::string name = spec.name;
  if (storage_ != nullptr) {
    if (const auto there = storage_->Find(name); there.ok()) {
      return spec.exist_ok ? Continue(*there, spec.model) : NameIsTaken(name);
    } else if (!absl::IsNotFound(there.status())) {
      return IsDamaged(name, there.status());
    }
  }
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> base,
                         services_.publisher->FindOrLoad(spec.model, spec.base_version));
  std::optional<LoadedVersion> initial;
  if (!spec.from_trainer.empty()) {
    BRAID_RETURN_IF_ERROR(UseSource(spec, [&](CheckpointStore& store) -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(initial, LoadTrained(store, spec.from_checkpoint, *base));
      return absl::OkStatus();
    }));
  }
  RemoveTracked(name);  // of an earlier trainer that was in memory only
  std::optional<StoredTrainer> stored;
  if (storage_ != nullptr) {
    stored = StoredTrainer{name, RandomId(), request, base->version()};
    BRAID_RETURN_IF_ERROR(storage_->Write(*stored));
  }
  const BaseModel model = initial ? BaseModel{initial->config, initial->version, initial->replicas}
                                  : BaseModel{base->config(), base->version(), base->replicas()};
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<Trainer> trainer, Start(std::move(spec), model, stored));
  TrainerInfo info = trainer->info();
  const absl::MutexLock lock(&mu_);
  trainers_[name] = std::move(trainer);
  return CreatedTrainer{std::move(info)};
}

absl::StatusOr<std::shared_ptr<Trainer>> TrainerRegistry::Start(
    TrainerSpec spec, const BaseModel& model, const std::optional<StoredTrainer>& stored) const {
  const auto create = [&]() -> absl::StatusOr<std::shared_ptr<Trainer>> {
    std::unique_ptr<CheckpointStore> store;
    if (stored) {
      BRAID_ASSIGN_OR_RETURN(store, storage_->OpenCheckpoints(stored->name));
    }
    return Trainer::Create(std::move(spec), stored ? stored->id : RandomId(), model,
                           std::move(store), services_);
  };
  absl::StatusOr<std::shared_ptr<Trainer>> trainer = create();
  absl::Status status = trainer.status();
  if (status.ok() && stored) {
    // A trainer is durable before Create() returns.
    status = SaveAndWait(**trainer).status();
  }
  if (!status.ok()) {
    trainer = status;
    if (stored) {
      storage_->Remove(stored->name).IgnoreError();  // the first error is reported
    }
    return status;
  }
  return trainer;
}

absl::StatusOr<CreatedTrainer> TrainerRegistry::Continue(const StoredTrainer& stored,
                                                         const std::string& model) {
  BRAID_ASSIGN_OR_RETURN(const TrainerSpec spec, read_spec_(stored.request));
  if (spec.model != model) {
    return NameIsTaken(stored.name);
  }
  BRAID_RETURN_IF_ERROR(RestoreOne(stored, /*checkpoint=*/""));
  BRAID_ASSIGN_OR_RETURN(TrainerInfo info, Get(stored.name));
  return CreatedTrainer{std::move(info), /*created=*/false};
}

absl::Status TrainerRegistry::RestoreOne(const StoredTrainer& stored,
                                         const std::string& checkpoint) {
  BRAID_ASSIGN_OR_RETURN(TrainerSpec spec, read_spec_(stored.request));
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<Trainer> trainer,
                         RestoreTrainer(stored, std::move(spec), checkpoint, *storage_, services_));
  if (stored.expired) {
    StoredTrainer back = stored;
    back.expired = false;
    BRAID_RETURN_IF_ERROR(storage_->Write(back));
  }
  const absl::MutexLock lock(&mu_);
  trainers_[stored.name] = std::move(trainer);
  return absl::OkStatus();
}

void TrainerRegistry::RestoreCheckpoint(std::string name, std::string checkpoint,
                                        CheckpointDone done) {
  if (const auto trainer = Find(name); trainer.ok()) {
    (*trainer)->RestoreCheckpoint(std::move(checkpoint), std::move(done));
    return;
  }
  thread_.Post([this, name = std::move(name), checkpoint = std::move(checkpoint),
                done = std::move(done)]() mutable {
    // Another call may have restored it already.
    if (const auto trainer = Find(name); trainer.ok()) {
      (*trainer)->RestoreCheckpoint(std::move(checkpoint), std::move(done));
      return;
    }
    done(BringBack(name, checkpoint));
  });
}

absl::StatusOr<CheckpointInfo> TrainerRegistry::BringBack(const std::string& name,
                                                          const std::string& checkpoint) {
  const absl::StatusOr<StoredTrainer> stored =
      storage_ != nullptr && CheckName(name).ok() ? storage_->Find(name) : NotFound(name);
  if (!stored.ok()) {
    return absl::IsNotFound(stored.status()) ? NotFound(name) : IsDamaged(name, stored.status());
  }
  BRAID_RETURN_IF_ERROR(CheckRoom());
  BRAID_RETURN_IF_ERROR(RestoreOne(*stored, checkpoint));
  const std::vector<CheckpointInfo> all = *(*Find(name))->ListCheckpoints();
  return all.back();
}

void TrainerRegistry::RemoveTracked(const std::string& name) {
  if (services_.tracking != nullptr) {
    services_.tracking->Remove(Tracking::TrainerFolder(name));
  }
}

absl::Status TrainerRegistry::DeleteNow(const std::string& name) {
  std::shared_ptr<Trainer> trainer = Take(name);
  // Also removes a trainer that cannot be read.
  const bool on_disk = storage_ != nullptr && CheckName(name).ok() &&
                       !absl::IsNotFound(storage_->Find(name).status());
  if (trainer == nullptr && !on_disk) {
    return NotFound(name);
  }
  // Joins its threads, unless a call still has a reference: then that call does.
  trainer.reset();
  RemoveTracked(name);
  return on_disk ? storage_->Remove(name) : absl::OkStatus();
}

template <typename Callback, typename Ask>
void TrainerRegistry::AskTrainer(absl::string_view name, Callback done, Ask ask) const {
  const absl::StatusOr<std::shared_ptr<Trainer>> trainer = Find(name);
  if (!trainer.ok()) {
    done(trainer.status());
    return;
  }
  ask(**trainer, std::move(done));
}

void TrainerRegistry::Submit(absl::string_view name, Operation operation, OperationDone done) {
  AskTrainer(name, std::move(done), [&](Trainer& trainer, OperationDone then) {
    trainer.Submit(std::move(operation), std::move(then));
  });
}

void TrainerRegistry::GetState(absl::string_view name, StateDone done) {
  AskTrainer(name, std::move(done),
             [](Trainer& trainer, StateDone then) { trainer.GetState(std::move(then)); });
}

void TrainerRegistry::Export(absl::string_view name, ExportFormat format, ExportDone done) {
  AskTrainer(name, std::move(done), [format](Trainer& trainer, ExportDone then) {
    trainer.Export(format, std::move(then));
  });
}

void TrainerRegistry::SaveCheckpoint(absl::string_view name, CheckpointDone done) {
  AskTrainer(name, std::move(done), [](Trainer& trainer, CheckpointDone then) {
    trainer.SaveCheckpoint(std::move(then));
  });
}

absl::StatusOr<std::vector<CheckpointInfo>> TrainerRegistry::ListCheckpoints(
    absl::string_view name) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<Trainer> trainer, Find(name));
  return trainer->ListCheckpoints();
}

absl::Status TrainerRegistry::KeepCheckpoint(absl::string_view name, std::string checkpoint) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<Trainer> trainer, Find(name));
  return trainer->KeepCheckpoint(std::move(checkpoint));
}

absl::Status TrainerRegistry::SetBeforeCheckpoint(absl::string_view name,
                                                  std::function<void()> call) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<Trainer> trainer, Find(name));
  trainer->SetBeforeCheckpoint(std::move(call));
  return absl::OkStatus();
}

absl::StatusOr<EvaluationRun> TrainerRegistry::StartEvaluation(
    absl::string_view name, const std::vector<std::string>& metrics, int64_t k) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<Trainer> trainer, Find(name));
  EvaluationRun run{.trainer = std::string(name), .evaluation = nullptr};
  BRAID_ASSIGN_OR_RETURN(run.evaluation, trainer->StartEvaluation(metrics, k));
  return run;
}

void TrainerRegistry::Evaluate(const EvaluationRun& run, std::vector<HostTensor> inputs,
                               std::vector<HostTensor> targets, EvaluateDone done) {
  AskTrainer(run.trainer, std::move(done), [&](Trainer& trainer, EvaluateDone then) {
    trainer.Evaluate(run.evaluation, run.layout, std::move(inputs), std::move(targets),
                     std::move(then));
  });
}

EvaluationResult TrainerRegistry::Result(const EvaluationRun& run) {
  return run.evaluation->Result();
}

void TrainerRegistry::TrackEvaluation(const EvaluationRun& run, int64_t step,
                                      const EvaluationResult& result) const {
  if (const auto trainer = Find(run.trainer); trainer.ok()) {
    (*trainer)->TrackEvaluation(step, result);
  }
}

absl::StatusOr<std::shared_ptr<Trainer>> TrainerRegistry::Find(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  const auto found = trainers_.find(name);
  if (found == trainers_.end()) {
    return NotFound(name);
  }
  return found->second;
}

absl::StatusOr<TrainerInfo> TrainerRegistry::Get(absl::string_view name) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<Trainer> trainer, Find(name));
  return trainer->info();
}

void TrainerRegistry::GetSettled(absl::string_view name, InfoDone done) const {
  AskTrainer(name, std::move(done),
             [](Trainer& trainer, InfoDone then) { trainer.GetSettled(std::move(then)); });
}

absl::StatusOr<std::string> TrainerRegistry::ModelOf(absl::string_view name) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<Trainer> trainer, Find(name));
  return trainer->spec().model;
}

std::vector<TrainerState> TrainerRegistry::States() const {
  const absl::MutexLock lock(&mu_);
  std::vector<TrainerState> states;
  for (const auto& [name, trainer] : trainers_) {
    states.push_back(trainer->state());
  }
  return states;
}

std::vector<TrainerInfo> TrainerRegistry::List() const {
  std::vector<TrainerInfo> infos;
  for (const std::shared_ptr<Trainer>& trainer : All()) {
    infos.push_back(trainer->info());
  }
  return infos;
}

}  // namespace braid
