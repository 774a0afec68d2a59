#include "server/training/trainer/trainer_registry.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
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
#include "server/training/trainer/base_models.h"
#include "server/training/trainer/checkpoint_format.h"
#include "server/training/trainer/host_model.h"
#include "server/training/trainer/past_trainer.h"
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

absl::StatusOr<CheckpointInfo> SaveAndWait(Trainer& trainer) {
  return WaitFor<absl::StatusOr<CheckpointInfo>>(
      [&](auto done) { trainer.SaveCheckpoint(std::move(done)); });
}

absl::StatusOr<LoadedCheckpoint> ReadNamed(CheckpointStore& store, const std::string& name) {
  return name.empty() ? store.ReadNewest() : store.Read(name);
}

// Loads the model of checkpoint `name` with its weights on the workers of `served`; an empty name
// means the newest.
absl::StatusOr<LoadedVersion> LoadTrained(CheckpointStore& store, const std::string& name,
                                          const BatchQueue& served, BaseModels* bases) {
  BRAID_ASSIGN_OR_RETURN(const LoadedCheckpoint checkpoint, ReadNamed(store, name));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedVersion> base,
                         bases->Load(checkpoint.files, served));
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> weights, ReadWeights(checkpoint.files));
  std::vector<StateEntry> state;
  for (const HostTensor& weight : weights) {
    state.push_back({weight.name, View(weight).clone()});
  }
  // Replicas of one file share tensors, so they are not changed but replaced.
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<HostModel> model, HostModel::CopyOf(base->replicas));
  const std::vector<Worker*> workers = base->replicas.workers();
  std::vector<std::unique_ptr<Replica>> trained(workers.size());
  for (size_t r = 0; r < workers.size(); ++r) {
    BRAID_RETURN_IF_ERROR(RunOnEach({workers[r]}, Phase::kLoad, [&](size_t) -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(trained[r], model->With(state, workers[r]->torch_device()));
      return absl::OkStatus();
    }));
  }
  return LoadedVersion{base->config, base->version, ReplicaSet(workers, std::move(trained))};
}

void LogUnreadable(const std::string& name, const absl::Status& status) {
  Log(LogModule::kTraining)
      .error("trainer '{}': cannot be restored, left on disk: {}", name,
             std::string(status.message()));
}

absl::Status HasExpired(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat(
      "trainer '", name, "' has expired (braid checkpoints restore ", name, " brings it back)"));
}

// Creates the trainer `stored` from `spec` and restores `checkpoint`; an empty name means the
// newest. Blocks. NOT_FOUND if there is no such checkpoint or the model is not served, DATA_LOSS if
// the files cannot be read.
absl::StatusOr<LoadedTrainer> RestoreTrainer(const StoredTrainer& stored, TrainerSpec spec,
                                             const std::string& checkpoint, TrainerFiles files,
                                             BaseModels* bases, const TrainerServices& services) {
  spec.name = stored.name;
  spec.base_version = stored.base_version;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served,
                         services.models->FindReplicas(spec.model, 0));
  if (RemoveMissingDevices(served->replicas(), &spec)) {
    Log(LogModule::kTraining)
        .warn("trainer '{}': moved to other devices (the server does not have all of its devices)",
              spec.name);
  }
  const bool replays = checkpoint.empty() && spec.journal == JournalMode::kOperations;
  BRAID_ASSIGN_OR_RETURN(StoredCheckpoint read,
                         replays ? ReadForRestart(*files.checkpoints)
                                 : ReadCheckpoint(*files.checkpoints, checkpoint));
  LoadedTrainer loaded;
  // The version that it started from may no longer be served, or may have changed.
  BRAID_ASSIGN_OR_RETURN(loaded.base, bases->Load(read.files, *served));
  BRAID_ASSIGN_OR_RETURN(loaded.trainer, Trainer::Create(std::move(spec), stored.id,
                                                         {loaded.base->config, loaded.base->version,
                                                          loaded.base->replicas},
                                                         std::move(files), services));
  BRAID_RETURN_IF_ERROR(WaitFor<absl::StatusOr<CheckpointInfo>>([&](auto done) {
                          if (checkpoint.empty()) {
                            loaded.trainer->Resume(std::move(read), std::move(done));
                          } else {
                            loaded.trainer->RestoreCheckpoint(checkpoint, std::move(done));
                          }
                        }).status());
  return loaded;
}

// Creates a trainer without files that stands at a checkpoint of `stored`, whose arguments are
// `spec`. Blocks. Errors as RestoreTrainer().
absl::StatusOr<LoadedTrainer> CreatePast(const StoredTrainer& stored, TrainerSpec spec,
                                         StoredCheckpoint read, BaseModels* bases,
                                         TrainerServices services) {
  // No trainer can have this name, so the metrics of the two do not mix.
  spec.name = absl::StrCat(stored.name, "@", read.info.step);
  spec.base_version = stored.base_version;
  spec.checkpoints = {};
  spec.idle_timeout = absl::ZeroDuration();
  spec.journal_history = {};
  services.tracking = nullptr;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served,
                         services.models->FindReplicas(spec.model, 0));
  RemoveMissingDevices(served->replicas(), &spec);
  LoadedTrainer loaded;
  BRAID_ASSIGN_OR_RETURN(loaded.base, bases->Load(read.files, *served));
  BRAID_ASSIGN_OR_RETURN(loaded.trainer, Trainer::Create(std::move(spec), stored.id,
                                                         {loaded.base->config, loaded.base->version,
                                                          loaded.base->replicas},
                                                         TrainerFiles(), services));
  BRAID_RETURN_IF_ERROR(loaded.trainer->Start(std::move(read)));
  return loaded;
}

// FindStep(). The journal may be damaged while a checkpoint has the state.
absl::StatusOr<PastState> FindState(const PastSource& source, int64_t step) {
  absl::StatusOr<PastState> state = FindStep(source.history, source.checkpoints, step);
  return state.ok() || source.damage.ok() ? state : source.damage;
}

absl::Status IsCancelled() { return absl::CancelledError("the call was cancelled"); }

absl::Status WasReplaced(const std::string& name) {
  return absl::AbortedError(
      absl::StrCat("trainer '", name, "' was deleted and created again during the call"));
}

// A trainer on disk, as far as its directory tells.
struct FoundTrainer {
  StoredTrainer stored;
  TrainerInfo info;
  absl::Time saved;
  std::unique_ptr<CheckpointStore> checkpoints;
};

// NOT_FOUND if it has no checkpoint: the server crashed before the client got a reply to Create().
absl::StatusOr<FoundTrainer> Describe(const StoredTrainer& stored, TrainerSpec spec,
                                      const TrainerStorage& storage) {
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointStore> store,
                         storage.OpenCheckpoints(stored.name));
  const std::optional<CheckpointInfo> newest = store->newest();
  if (!newest && store->damaged().empty()) {
    return absl::NotFoundError("it has no checkpoint");
  }
  FoundTrainer found{stored, {}, newest ? newest->created : absl::InfinitePast(), std::move(store)};
  found.info.spec = std::move(spec);
  found.info.spec.name = stored.name;
  found.info.spec.base_version = stored.base_version;
  found.info.id = stored.id;
  found.info.on_disk = true;
  if (newest) {
    found.info.step = newest->step;
    found.info.applied_sequence = newest->sequence;
    found.info.durable_sequence = newest->sequence;
  }
  return found;
}

}  // namespace

TrainerRegistry::TrainerRegistry(const TrainerServices& services,
                                 std::unique_ptr<TrainerStorage> storage, SpecReader read_spec,
                                 size_t most)
    : services_(services),
      storage_(std::move(storage)),
      read_spec_(std::move(read_spec)),
      most_(most),
      bases_(std::make_unique<BaseModels>()),
      thread_("trainers"),
      histories_(&services_.pools->history),
      past_states_(&services_.pools->history),
      replays_(&services_.pools->history),
      clock_([this] { RunClock(); }) {}

TrainerRegistry::~TrainerRegistry() {
  CancelReplays();
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
  const std::vector<std::shared_ptr<PagedTrainer>> all = All();
  for (const std::shared_ptr<PagedTrainer>& trainer : all) {
    trainer->CallInMemory([now](const absl::StatusOr<Trainer*>& there) { (*there)->Tick(now); });
    const absl::Duration timeout = trainer->idle_timeout();
    if (timeout > absl::ZeroDuration() && now - trainer->last_used() >= timeout) {
      Expire(*trainer);
    }
  }
  FreeMemory(all);
}

void TrainerRegistry::FreeMemory(const std::vector<std::shared_ptr<PagedTrainer>>& trainers) const {
  std::map<std::string, int64_t> excess;
  for (const auto& [device, limit] : services_.memory) {
    excess[device] = -limit;
  }
  struct User {
    absl::Time last_used;
    PagedTrainer* trainer = nullptr;
    std::vector<DeviceMemory> memory;
  };
  std::vector<User> users;
  for (const std::shared_ptr<PagedTrainer>& trainer : trainers) {
    std::vector<DeviceMemory> memory = trainer->memory();
    for (const DeviceMemory& used : memory) {
      if (const auto device = excess.find(used.device); device != excess.end()) {
        device->second += used.current;
      }
    }
    // A job frees its trainer itself.
    if (!memory.empty() && !absl::StartsWith(trainer->name(), kJobTrainerPrefix)) {
      users.push_back({trainer->last_used(), trainer.get(), std::move(memory)});
    }
  }
  const auto too_much = [&excess](const DeviceMemory& used) {
    const auto device = excess.find(used.device);
    return device != excess.end() && device->second > 0;
  };
  std::ranges::sort(users, {}, &User::last_used);
  for (const User& user : users) {
    if (std::ranges::any_of(user.memory, too_much) && user.trainer->PageOut()) {
      for (const DeviceMemory& used : user.memory) {
        if (const auto device = excess.find(used.device); device != excess.end()) {
          device->second -= used.current;
        }
      }
    }
  }
}

absl::Status TrainerRegistry::Retire(PagedTrainer& trainer) {
  const std::string& name = trainer.name();
  BRAID_ASSIGN_OR_RETURN(StoredTrainer stored, storage_->Find(name));
  BRAID_RETURN_IF_ERROR(trainer.Retire());
  stored.expired = true;
  if (const absl::Status status = storage_->Write(stored); !status.ok()) {
    Log(LogModule::kTraining)
        .error("trainer '{}': the next start restores it: {}", name, std::string(status.message()));
  }
  Take(name).reset();
  const absl::MutexLock lock(&mu_);
  expired_.insert(name);
  return absl::OkStatus();
}

// Requires storage: without it no trainer has an idle timeout.
void TrainerRegistry::Expire(PagedTrainer& trainer) {
  const std::string name = trainer.name();
  const absl::Status status = Retire(trainer);
  if (status.ok()) {
    Log(LogModule::kTraining)
        .info("trainer '{}': expired after {} without use; RestoreCheckpoint restores it", name,
              absl::FormatDuration(trainer.idle_timeout()));
  } else if (!absl::IsFailedPrecondition(status)) {  // else it has been used in the meantime
    Log(LogModule::kTraining)
        .error("trainer '{}': not expired, its state cannot be saved: {}", name,
               std::string(status.message()));
  }
}

void TrainerRegistry::Unload(std::string name, Done done) {
  thread_.Post([this, name = std::move(name), done = std::move(done)]() mutable {
    const absl::StatusOr<std::shared_ptr<PagedTrainer>> trainer = Find(name);
    if (!trainer.ok()) {
      done(absl::OkStatus());
    } else if (storage_ == nullptr) {
      done(absl::FailedPreconditionError(
          absl::StrCat("trainer '", name, "' cannot be unloaded: there is no --data_dir")));
    } else {
      done(Retire(**trainer));
    }
  });
}

std::vector<std::shared_ptr<PagedTrainer>> TrainerRegistry::All() const {
  const absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<PagedTrainer>> all;
  for (const auto& [name, trainer] : trainers_) {
    all.push_back(trainer);
  }
  return all;
}

std::shared_ptr<PagedTrainer> TrainerRegistry::Take(const std::string& name) {
  const absl::MutexLock lock(&mu_);
  const auto found = trainers_.find(name);
  if (found == trainers_.end()) {
    return nullptr;
  }
  std::shared_ptr<PagedTrainer> trainer = std::move(found->second);
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
  std::vector<FoundTrainer> found;
  for (const StoredTrainer& trainer : *stored) {
    if (trainer.expired) {
      const absl::MutexLock lock(&mu_);
      expired_.insert(trainer.name);
      continue;
    }
    absl::StatusOr<TrainerSpec> spec = read_spec_(trainer.request);
    absl::StatusOr<FoundTrainer> described =
        spec.ok() ? Describe(trainer, *std::move(spec), *storage_) : std::move(spec).status();
    if (described.ok()) {
      found.push_back(*std::move(described));
    } else if (absl::IsNotFound(described.status())) {
      storage_->Remove(trainer.name)
          .IgnoreError();  // else the next Create() of this name reports it
    } else {
      LogUnreadable(trainer.name, described.status());
    }
  }
  std::ranges::sort(found, std::greater<>(), &FoundTrainer::saved);
  for (size_t t = 0; t < found.size(); ++t) {
    const std::string name = found[t].stored.name;
    absl::Status status;
    if (t < kReadAtStart) {
      // The store has logged damaged checkpoints.
      status = RestoreOne(found[t].stored, /*checkpoint=*/"", std::move(found[t].checkpoints));
      if (status.ok()) {
        const TrainerInfo info = (*Find(name))->info();
        Log(LogModule::kTraining)
            .info("trainer '{}': restored at step {}, sequence {}", name, info.step,
                  info.applied_sequence);
        continue;
      }
      LogUnreadable(name, status);
    }
    AddOnDisk(std::move(found[t].info));
  }
  if (found.size() > kReadAtStart) {
    Log(LogModule::kTraining)
        .info("trainers: {} more are read from disk when they are used",
              found.size() - kReadAtStart);
  }
}

bool TrainerRegistry::SaveAll() {
  bool all = true;
  for (const std::shared_ptr<PagedTrainer>& trainer : All()) {
    if (storage_ == nullptr || trainer->state().on_disk) {
      continue;
    }
    const auto saved = WaitFor<absl::StatusOr<CheckpointInfo>>([&](auto done) {
      trainer->Call([done](const absl::StatusOr<Trainer*>& there) {
        if (there.ok()) {
          (*there)->SaveLast(done);
        } else {
          done(there.status());
        }
      });
    });
    if (!saved.ok()) {
      Log(LogModule::kTraining)
          .error("trainer '{}': the last checkpoint was not written: {}", trainer->name(),
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

absl::Status TrainerRegistry::UseCheckpoints(
    const std::string& name, absl::FunctionRef<absl::Status(CheckpointStore&)> use) const {
  return AskAndWait<absl::Status>(
      name, [&use](Trainer& trainer, Done done) { done(trainer.UseCheckpoints(use)); });
}

template <typename Result, typename Use>
Result TrainerRegistry::AskAndWait(const std::string& name, Use use) const {
  return WaitFor<Result>(
      [&](auto done) { AskTrainer(name, absl::AnyInvocable<void(Result)>(done), std::move(use)); });
}

template <typename Result, typename Work>
Result TrainerRegistry::OnThread(Work work) {
  return WaitFor<Result>([&](auto done) { thread_.Post([&work, done] { done(work()); }); });
}

absl::StatusOr<StoredTrainer> TrainerRegistry::FindJournaled(const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<PagedTrainer> trainer, Find(name));
  if (storage_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "trainer '", name, "' has no journal: the server was started without --data_dir"));
  }
  const bool of_job = absl::StartsWith(name, kJobTrainerPrefix);
  if (of_job || trainer->info().spec.journal == JournalMode::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("trainer '", name, "' has no journal",
                     of_job ? " (trainers of jobs have none)" : " (journal is 'none')"));
  }
  return storage_->Find(name);
}

absl::StatusOr<PastSource> TrainerRegistry::SourceOf(const std::string& name,
                                                     const Cancelled& cancelled) const {
  BRAID_ASSIGN_OR_RETURN(const StoredTrainer stored, FindJournaled(name));
  BRAID_ASSIGN_OR_RETURN(TrainerSpec spec, read_spec_(stored.request));
  PastSource source;
  source.trainer_id = stored.id;
  source.cancelled = [this, cancelled] { return cancelled_past_ || cancelled(); };
  if (source.cancelled()) {
    return IsCancelled();
  }
  BRAID_RETURN_IF_ERROR(AskAndWait<absl::Status>(name, [&](Trainer& trainer, Done done) {
    source.use = trainer.UseHistory();
    done(trainer.UseCheckpoints([&source](CheckpointStore& store) {
      source.checkpoints = store.List();
      return absl::OkStatus();
    }));
  }));
  BRAID_ASSIGN_OR_RETURN(const std::string directory, storage_->JournalOf(name));
  absl::StatusOr<std::vector<RecordedOperation>> history = ReadHistory(directory);
  if (history.ok()) {
    source.history = *std::move(history);
  } else {
    source.damage = history.status();
  }
  source.read_checkpoint =
      [this, name](const std::string& checkpoint) -> absl::StatusOr<StoredCheckpoint> {
    std::optional<StoredCheckpoint> read;
    BRAID_RETURN_IF_ERROR(UseCheckpoints(name, [&](CheckpointStore& store) -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(read, ReadCheckpoint(store, checkpoint));
      return absl::OkStatus();
    }));
    return *std::move(read);
  };
  source.create = [this, stored, spec = std::move(spec)](StoredCheckpoint read) {
    return CreatePast(stored, spec, std::move(read), bases_.get(), services_);
  };
  source.read_request = services_.read_operation;
  return source;
}

void TrainerRegistry::CancelReplays() { cancelled_past_ = true; }

void TrainerRegistry::GetHistory(const std::string& name, const HistoryRange& range,
                                 HistoryDone done) {
  histories_.Post([this, name, range, done = std::move(done)]() mutable {
    const auto read = [&]() -> absl::StatusOr<std::vector<RecordedOperation>> {
      BRAID_RETURN_IF_ERROR(FindJournaled(name).status());
      BRAID_ASSIGN_OR_RETURN(const std::string directory, storage_->JournalOf(name));
      return ReadHistory(directory, range);
    };
    done(read());
  });
}

void TrainerRegistry::Replay(const std::string& name, const ReplayRange& range, Cancelled cancelled,
                             ReplayDone done) {
  replays_.Post(
      [this, name, range, cancelled = std::move(cancelled), done = std::move(done)]() mutable {
        const auto replay = [&]() -> absl::StatusOr<ReplayReport> {
          BRAID_ASSIGN_OR_RETURN(const PastSource source, SourceOf(name, cancelled));
          BRAID_RETURN_IF_ERROR(source.damage);
          return ReplayAndCompare(source, range);
        };
        absl::StatusOr<ReplayReport> report = replay();
        done(report.ok() ? std::move(report) : ReasonOf(report.status()));
      });
}

absl::Status TrainerRegistry::ReasonOf(const absl::Status& failure) const {
  return absl::IsCancelled(failure) && cancelled_past_
             ? absl::UnavailableError("the server is shutting down")
             : failure;
}

void TrainerRegistry::RestoreStep(const std::string& name, int64_t step, Cancelled cancelled,
                                  CheckpointDone done) {
  past_states_.Post(
      [this, name, step, cancelled = std::move(cancelled), done = std::move(done)]() mutable {
        absl::StatusOr<CheckpointInfo> restored = RestoreStepNow(name, step, cancelled);
        done(restored.ok() ? std::move(restored) : ReasonOf(restored.status()));
      });
}

absl::StatusOr<CheckpointInfo> TrainerRegistry::RestoreStepNow(const std::string& name,
                                                               int64_t step,
                                                               const Cancelled& cancelled) {
  BRAID_ASSIGN_OR_RETURN(const PastSource source, SourceOf(name, cancelled));
  BRAID_ASSIGN_OR_RETURN(const PastState state, FindState(source, step));
  std::optional<TrainerCheckpoint> recomputed;
  if (state.checkpoint.empty()) {
    BRAID_ASSIGN_OR_RETURN(const PastTrainer past, PastTrainer::At(source, state.position));
    BRAID_ASSIGN_OR_RETURN(recomputed, past.trainer().Checkpoint());
  }
  if (source.cancelled()) {
    return IsCancelled();
  }
  return AskAndWait<absl::StatusOr<CheckpointInfo>>(
      name, [&](Trainer& trainer, CheckpointDone done) {
        if (trainer.id() != source.trainer_id) {
          done(WasReplaced(name));
        } else if (recomputed) {
          trainer.RestoreState(*std::move(recomputed), std::move(done));
        } else {
          trainer.RestoreCheckpoint(state.checkpoint, std::move(done));
        }
      });
}

void TrainerRegistry::Fork(const std::string& name, std::optional<int64_t> step,
                           const std::string& new_name, Cancelled cancelled, InfoDone done) {
  past_states_.Post([this, name, step, new_name, cancelled = std::move(cancelled),
                     done = std::move(done)]() mutable {
    absl::StatusOr<TrainerInfo> fork = ForkNow(name, step, new_name, cancelled);
    done(fork.ok() ? std::move(fork) : ReasonOf(fork.status()));
  });
}

absl::StatusOr<TrainerInfo> TrainerRegistry::ForkNow(const std::string& name,
                                                     const std::optional<int64_t>& step,
                                                     const std::string& new_name,
                                                     const Cancelled& cancelled) {
  BRAID_RETURN_IF_ERROR(PrefixField("new_", CheckName(new_name)));
  std::shared_ptr<void> use;
  std::string trainer_id;
  std::string checkpoint;
  std::optional<PastTrainer> past;
  if (step) {
    BRAID_ASSIGN_OR_RETURN(const PastSource source, SourceOf(name, cancelled));
    BRAID_ASSIGN_OR_RETURN(const PastState state, FindState(source, *step));
    use = source.use;
    trainer_id = source.trainer_id;
    checkpoint = state.checkpoint;
    if (checkpoint.empty()) {
      BRAID_ASSIGN_OR_RETURN(past, PastTrainer::At(source, state.position));
    }
  } else {
    BRAID_ASSIGN_OR_RETURN(const CheckpointInfo saved,
                           AskAndWait<absl::StatusOr<CheckpointInfo>>(
                               name, [&](Trainer& trainer, CheckpointDone done) {
                                 use = trainer.UseHistory();
                                 trainer_id = trainer.id();
                                 trainer.SaveLast(std::move(done));
                               }));
    checkpoint = saved.name;
  }
  if (cancelled_past_ || cancelled()) {
    return IsCancelled();
  }
  BRAID_ASSIGN_OR_RETURN(const StoredTrainer stored, OnThread<absl::StatusOr<StoredTrainer>>([&] {
                           return StoreFork(name, trainer_id, new_name);
                         }));
  absl::Status written = [&]() -> absl::Status {
    if (past) {
      BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                             storage_->OpenCheckpoints(new_name));
      return past->trainer().WriteTo(*store);
    }
    BRAID_ASSIGN_OR_RETURN(const std::string directory, storage_->CheckpointsOf(new_name));
    return UseCheckpoints(
        name, [&](CheckpointStore& store) { return store.CopyTo(checkpoint, directory); });
  }();
  return OnThread<absl::StatusOr<TrainerInfo>>([&] { return AddFork(stored, std::move(written)); });
}

absl::StatusOr<StoredTrainer> TrainerRegistry::StoreFork(const std::string& name,
                                                         const std::string& trainer_id,
                                                         const std::string& new_name) {
  BRAID_RETURN_IF_ERROR(CheckRoom());
  const absl::Status taken = storage_->Find(new_name).status();
  if (Find(new_name).ok() || taken.ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat("new_name: trainer '", new_name, "' already exists (choose another name)"));
  }
  if (!absl::IsNotFound(taken)) {
    return IsDamaged(new_name, taken);
  }
  BRAID_ASSIGN_OR_RETURN(StoredTrainer stored, storage_->Find(name));
  if (stored.id != trainer_id) {
    return WasReplaced(name);
  }
  stored.name = new_name;
  stored.id = RandomId();
  stored.expired = false;
  RemoveTracked(new_name);  // of an earlier trainer that was in memory only
  BRAID_RETURN_IF_ERROR(storage_->Write(stored));
  return stored;
}

absl::StatusOr<TrainerInfo> TrainerRegistry::AddFork(const StoredTrainer& stored,
                                                     absl::Status written) {
  const auto describe = [&]() -> absl::StatusOr<FoundTrainer> {
    BRAID_RETURN_IF_ERROR(std::move(written));
    BRAID_ASSIGN_OR_RETURN(TrainerSpec spec, read_spec_(stored.request));
    return Describe(stored, std::move(spec), *storage_);
  };
  absl::StatusOr<FoundTrainer> found = describe();
  if (!found.ok()) {
    storage_->Remove(stored.name).IgnoreError();  // the first error is reported
    return found.status();
  }
  TrainerInfo info = found->info;
  AddOnDisk(std::move(found->info));
  return info;
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
    BRAID_RETURN_IF_ERROR(check_model((*live)->model()));
    return UseCheckpoints(spec.from_trainer, use);
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
    const TrainerSpec known = (*there)->info().spec;
    const bool retry = !spec.request_id.empty() && known.request_id == spec.request_id;
    // The caller may train `spec.model`, so it may only learn about that model's trainers.
    if (known.model != spec.model || !(retry || spec.exist_ok)) {
      return NameIsTaken(spec.name);
    }
    BRAID_ASSIGN_OR_RETURN(TrainerInfo info, WaitFor<absl::StatusOr<TrainerInfo>>(
                                                 [&](auto done) { Get(spec.name, done); }));
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
      BRAID_ASSIGN_OR_RETURN(initial,
                             LoadTrained(store, spec.from_checkpoint, *base, bases_.get()));
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
  Add(name, {nullptr, std::move(trainer)});
  return CreatedTrainer{std::move(info)};
}

void TrainerRegistry::Add(const std::string& name, LoadedTrainer loaded) {
  auto trainer =
      std::make_shared<PagedTrainer>(std::move(loaded), Reader(name), &services_.pools->paging);
  const absl::MutexLock lock(&mu_);
  trainers_[name] = std::move(trainer);
  expired_.erase(name);
}

void TrainerRegistry::AddOnDisk(TrainerInfo info) {
  const std::string name = info.spec.name;
  auto trainer =
      std::make_shared<PagedTrainer>(std::move(info), Reader(name), &services_.pools->paging);
  const absl::MutexLock lock(&mu_);
  trainers_[name] = std::move(trainer);
}

PagedTrainer::Load TrainerRegistry::Reader(const std::string& name) {
  if (storage_ == nullptr) {
    return nullptr;
  }
  return [this, name]() -> absl::StatusOr<LoadedTrainer> {
    BRAID_ASSIGN_OR_RETURN(const StoredTrainer stored, storage_->Find(name));
    return Load(stored, /*checkpoint=*/"");
  };
}

absl::StatusOr<LoadedTrainer> TrainerRegistry::Load(const StoredTrainer& stored,
                                                    const std::string& checkpoint,
                                                    std::unique_ptr<CheckpointStore> checkpoints) {
  BRAID_ASSIGN_OR_RETURN(TrainerSpec spec, read_spec_(stored.request));
  BRAID_ASSIGN_OR_RETURN(TrainerFiles files, FilesOf(stored.name, std::move(checkpoints)));
  return RestoreTrainer(stored, std::move(spec), checkpoint, std::move(files), bases_.get(),
                        services_);
}

absl::StatusOr<TrainerFiles> TrainerRegistry::FilesOf(
    const std::string& name, std::unique_ptr<CheckpointStore> checkpoints) const {
  TrainerFiles files{std::move(checkpoints)};
  if (files.checkpoints == nullptr) {
    BRAID_ASSIGN_OR_RETURN(files.checkpoints, storage_->OpenCheckpoints(name));
  }
  BRAID_ASSIGN_OR_RETURN(files.journal_directory, storage_->JournalOf(name));
  return files;
}

absl::StatusOr<std::shared_ptr<Trainer>> TrainerRegistry::Start(
    TrainerSpec spec, const BaseModel& model, const std::optional<StoredTrainer>& stored) const {
  const auto create = [&]() -> absl::StatusOr<std::shared_ptr<Trainer>> {
    TrainerFiles files;
    if (stored) {
      BRAID_ASSIGN_OR_RETURN(files, FilesOf(stored->name, nullptr));
    }
    return Trainer::Create(std::move(spec), stored ? stored->id : RandomId(), model,
                           std::move(files), services_);
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
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<PagedTrainer> trainer, Find(stored.name));
  return CreatedTrainer{trainer->info(), /*created=*/false};
}

absl::Status TrainerRegistry::RestoreOne(const StoredTrainer& stored, const std::string& checkpoint,
                                         std::unique_ptr<CheckpointStore> checkpoints) {
  BRAID_ASSIGN_OR_RETURN(LoadedTrainer loaded, Load(stored, checkpoint, std::move(checkpoints)));
  if (stored.expired) {
    StoredTrainer back = stored;
    back.expired = false;
    BRAID_RETURN_IF_ERROR(storage_->Write(back));
  }
  Add(stored.name, std::move(loaded));
  return absl::OkStatus();
}

void TrainerRegistry::RestoreCheckpoint(const std::string& name, const std::string& checkpoint,
                                        CheckpointDone done) {
  const absl::StatusOr<std::shared_ptr<PagedTrainer>> trainer = Find(name);
  if (!trainer.ok()) {
    thread_.Post([this, name, checkpoint, done = std::move(done)]() mutable {
      // Another call may have restored it already.
      if (Find(name).ok()) {
        RestoreCheckpoint(name, checkpoint, std::move(done));
      } else {
        done(BringBack(name, checkpoint));
      }
    });
    return;
  }
  (*trainer)->Call([this, name, checkpoint,
                    done = std::move(done)](const absl::StatusOr<Trainer*>& there) mutable {
    if (there.ok()) {
      (*there)->RestoreCheckpoint(checkpoint, std::move(done));
    } else if (checkpoint.empty()) {
      done(there.status());
    } else {
      // Only the newest checkpoint may be unusable.
      thread_.Post([this, name, checkpoint, done = std::move(done)]() mutable {
        done(BringBack(name, checkpoint));
      });
    }
  });
}

absl::StatusOr<CheckpointInfo> TrainerRegistry::BringBack(const std::string& name,
                                                          const std::string& checkpoint) {
  const absl::StatusOr<StoredTrainer> stored =
      storage_ != nullptr && CheckName(name).ok() ? storage_->Find(name) : NotFound(name);
  if (!stored.ok()) {
    return absl::IsNotFound(stored.status()) ? NotFound(name) : IsDamaged(name, stored.status());
  }
  const absl::StatusOr<std::shared_ptr<PagedTrainer>> there = Find(name);
  BRAID_RETURN_IF_ERROR(there.ok() ? (*there)->Retire() : CheckRoom());
  if (absl::Status restored = RestoreOne(*stored, checkpoint); !restored.ok()) {
    if (there.ok()) {
      AddOnDisk((*there)->info());
    }
    return restored;
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all,
                         WaitFor<absl::StatusOr<std::vector<CheckpointInfo>>>(
                             [&](auto done) { ListCheckpoints(name, done); }));
  return all.back();
}

void TrainerRegistry::RemoveTracked(const std::string& name) {
  if (services_.tracking != nullptr) {
    services_.tracking->Remove(Tracking::TrainerFolder(name));
  }
}

absl::Status TrainerRegistry::DeleteNow(const std::string& name) {
  std::shared_ptr<PagedTrainer> trainer = Take(name);
  // Also removes a trainer that cannot be read.
  const bool on_disk = storage_ != nullptr && CheckName(name).ok() &&
                       !absl::IsNotFound(storage_->Find(name).status());
  if (trainer == nullptr && !on_disk) {
    return NotFound(name);
  }
  // Joins its threads, unless a call still has a reference: then that call does.
  trainer.reset();
  {
    const absl::MutexLock lock(&mu_);
    expired_.erase(name);
  }
  RemoveTracked(name);
  return on_disk ? storage_->Remove(name) : absl::OkStatus();
}

template <typename Callback, typename Ask>
void TrainerRegistry::AskTrainer(absl::string_view name, Callback done, Ask ask) const {
  const absl::StatusOr<std::shared_ptr<PagedTrainer>> trainer = Find(name);
  if (!trainer.ok()) {
    done(trainer.status());
    return;
  }
  (*trainer)->Call([done = std::move(done),
                    ask = std::move(ask)](const absl::StatusOr<Trainer*>& there) mutable {
    if (there.ok()) {
      ask(**there, std::move(done));
    } else {
      done(there.status());
    }
  });
}

void TrainerRegistry::Submit(absl::string_view name, Operation operation, OperationDone done) {
  AskTrainer(name, std::move(done),
             [operation = std::move(operation)](Trainer& trainer, OperationDone then) mutable {
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

void TrainerRegistry::ListCheckpoints(absl::string_view name, ListDone done) const {
  AskTrainer(name, std::move(done),
             [](Trainer& trainer, ListDone then) { then(trainer.ListCheckpoints()); });
}

absl::Status TrainerRegistry::KeepCheckpoint(absl::string_view name, std::string checkpoint) const {
  return WaitFor<absl::Status>([&](auto done) {
    AskTrainer(name, Done(done), [&checkpoint](Trainer& trainer, Done then) {
      then(trainer.KeepCheckpoint(std::move(checkpoint)));
    });
  });
}

absl::Status TrainerRegistry::SetBeforeCheckpoint(absl::string_view name,
                                                  std::function<void()> call) const {
  return WaitFor<absl::Status>([&](auto done) {
    AskTrainer(name, Done(done), [&call](Trainer& trainer, Done then) {
      trainer.SetBeforeCheckpoint(std::move(call));
      then(absl::OkStatus());
    });
  });
}

void TrainerRegistry::Evaluate(EvaluationRun* run, std::vector<HostTensor> inputs,
                               std::vector<HostTensor> targets, EvaluateDone done) {
  AskTrainer(run->trainer, std::move(done),
             [run, inputs = std::move(inputs), targets = std::move(targets)](
                 Trainer& trainer, EvaluateDone then) mutable {
               if (run->evaluation == nullptr) {
                 auto started = trainer.StartEvaluation(run->metrics, run->k);
                 if (!started.ok()) {
                   then(started.status());
                   return;
                 }
                 run->evaluation = *std::move(started);
               }
               trainer.Evaluate(run->evaluation, run->layout, std::move(inputs), std::move(targets),
                                std::move(then));
             });
}

EvaluationResult TrainerRegistry::Result(const EvaluationRun& run) {
  return run.evaluation == nullptr ? EvaluationResult() : run.evaluation->Result();
}

void TrainerRegistry::TrackEvaluation(const EvaluationRun& run, int64_t step,
                                      const EvaluationResult& result) const {
  AskTrainer(
      run.trainer, Done([](const absl::Status&) {}),
      [step, result](Trainer& trainer, const Done&) { trainer.TrackEvaluation(step, result); });
}

absl::StatusOr<std::shared_ptr<PagedTrainer>> TrainerRegistry::Find(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  if (const auto found = trainers_.find(name); found != trainers_.end()) {
    return found->second;
  }
  return expired_.contains(name) ? HasExpired(name) : NotFound(name);
}

void TrainerRegistry::Get(absl::string_view name, InfoDone done) const {
  const absl::StatusOr<std::shared_ptr<PagedTrainer>> trainer = Find(name);
  if (!trainer.ok()) {
    done(trainer.status());
  } else if ((*trainer)->has_info()) {
    done((*trainer)->info());
  } else {
    AskTrainer(name, std::move(done), [](Trainer& there, InfoDone then) { then(there.info()); });
  }
}

void TrainerRegistry::GetSettled(absl::string_view name, InfoDone done) const {
  AskTrainer(name, std::move(done),
             [](Trainer& trainer, InfoDone then) { trainer.GetSettled(std::move(then)); });
}

absl::StatusOr<std::string> TrainerRegistry::ModelOf(absl::string_view name) const {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<PagedTrainer> trainer, Find(name));
  return trainer->model();
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
  for (const std::shared_ptr<PagedTrainer>& trainer : All()) {
    infos.push_back(trainer->info());
  }
  return infos;
}

}  // namespace braid
