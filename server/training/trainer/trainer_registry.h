// All trainers of the server, by name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/task_pool.h"
#include "server/base/task_thread.h"
#include "server/serving/served_models.h"
#include "server/storage/checkpoint_store.h"
#include "server/telemetry/metrics.h"
#include "server/tracking/tracking.h"
#include "server/training/trainer/evaluation_result.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/operation_records.h"
#include "server/training/trainer/paged_trainer.h"
#include "server/training/trainer/replay_report.h"
#include "server/training/trainer/step_profiler.h"
#include "server/training/trainer/trainer_history.h"
#include "server/training/trainer/version_info.h"
#include "server/training/trainer_spec.h"

namespace braid {

class BaseModels;
class Evaluation;
class JobGate;
class Publisher;
class Trainer;
class TrainerStorage;
class Worker;
struct BaseModel;
struct PastSource;
struct StoredTrainer;
struct TrainerFiles;

// Names of trainers that belong to jobs start with it. Clients may read them, but not change them.
inline constexpr absl::string_view kJobTrainerPrefix = "job-";

// Threads of all trainers. An operation occupies one while it waits for workers or for the files of
// a version. An operation of a job also waits for its turn at a GPU.
struct TrainerPools {
  TaskPool operations{"trainer", 32};
  TaskPool job_operations{"job trainer", 32};
  TaskPool checkpoints{"checkpoints", 8};
  TaskPool journals{"journals", 8};
  // Frees trainers and reads them again.
  TaskPool paging{"trainer paging", 4};
  // Recomputes earlier states.
  TaskPool history{"trainer history", 3};
};

// Services that trainers use. They outlive the trainers.
struct TrainerServices {
  ServedModels* models = nullptr;
  Publisher* publisher = nullptr;
  Metrics* metrics = nullptr;
  TrainerPools* pools = nullptr;
  StepProfiler* profiler = nullptr;  // nullptr: no profiling
  bool overlap_reduction = false;    // Placement::overlap_reduction
  // DevicePool::training_workers(), for trainers of clients, and DevicePool::background_workers(),
  // for trainers of jobs. Empty: they share those of requests.
  std::vector<Worker*> training_workers = {};
  std::vector<Worker*> job_workers = {};
  // Delays steps of jobs. nullptr: no delay.
  JobGate* job_gate = nullptr;
  // Writes the metrics of trainers that are not of jobs to files. nullptr: no files.
  Tracking* tracking = nullptr;
  // Bytes of memory per device, by the name of its workers, beyond which idle trainers are freed.
  // Devices without an entry have no limit.
  std::map<std::string, int64_t> memory = {};
  // Reads requests in journals. nullptr: no journals.
  RequestReader read_operation = {};
};

struct CreatedTrainer {
  TrainerInfo info;
  bool created = true;  // false: it existed (TrainerSpec::exist_ok)
};

// Use of a trainer that is to be created.
struct TrainerUse {
  // One row of each target, [1, …], without data.
  std::vector<HostTensor> targets;
  // Of evaluations.
  std::vector<std::string> metrics;
  int64_t top_k = 1;
};

// An evaluation in progress.
struct EvaluationRun {
  std::string trainer;
  // Arguments of Evaluation::Create().
  std::vector<std::string> metrics;
  int64_t k = 1;
  BatchLayout layout = BatchLayout::kClient;
  // Created with the first batch.
  std::shared_ptr<Evaluation> evaluation = nullptr;
};

// Owned by the server. Thread-safe. Creating, deleting and restoring block, so they run on a thread
// of the registry. With storage, trainers that nobody uses leave memory (PagedTrainer).
class TrainerRegistry {
 public:
  using InfoDone = absl::AnyInvocable<void(absl::StatusOr<TrainerInfo>)>;
  using CreateDone = absl::AnyInvocable<void(absl::StatusOr<CreatedTrainer>)>;
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using CheckpointDone = absl::AnyInvocable<void(absl::StatusOr<CheckpointInfo>)>;
  using ListDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<CheckpointInfo>>)>;
  // Receives the number of updates that the trainer has made.
  using EvaluateDone = absl::AnyInvocable<void(absl::StatusOr<int64_t>)>;
  // Returns true if the caller no longer waits.
  using Cancelled = std::function<bool()>;
  // Parses a stored trainer's request.
  using SpecReader = std::function<absl::StatusOr<TrainerSpec>(const std::string& request)>;

  // `services` outlive the registry. `storage`: nullptr keeps trainers in memory only. `most`:
  // maximum number of trainers, in memory and on disk, not counting those that RestoreStored()
  // finds.
  TrainerRegistry(const TrainerServices& services, std::unique_ptr<TrainerStorage> storage,
                  SpecReader read_spec, size_t most);
  ~TrainerRegistry();

  // Number of trainers that RestoreStored() reads.
  static constexpr size_t kReadAtStart = 64;

  // Finds the stored trainers. Reads those with the newest checkpoints; the log tells which of them
  // cannot be read. The others, and these, are read when they are used. Blocks.
  void RestoreStored() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls Trainer::SaveLast() for every trainer. Returns false, and logs why, if a checkpoint could
  // not be written. Blocks.
  bool SaveAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Creates a trainer. An empty name becomes the model's name. Stores `request` for
  // RestoreStored(). NOT_FOUND for an unknown model; ALREADY_EXISTS for a name in use, unless
  // `spec.request_id` and the model show that this is a retry of the call that created it;
  // INVALID_ARGUMENT naming the wrong field; RESOURCE_EXHAUSTED if the maximum number of trainers
  // exists. With `spec.exist_ok`, returns an existing trainer of the model, whose other arguments
  // the caller compares, and restores it if it has expired.
  void Create(TrainerSpec spec, std::string request, CreateDone done);
  // Waits for the trainer's running operation, then deletes it, its checkpoints and its tracked
  // metrics. NOT_FOUND for an unknown name.
  void Delete(std::string name, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the memory of a trainer after a checkpoint: it stays in the data directory, from where
  // RestoreCheckpoint() brings it back. No-op if it is not in memory. FAILED_PRECONDITION if it is
  // used meanwhile, or without a data directory.
  void Unload(std::string name, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Checks the specification as Create() does, but allocates no gradients and no optimizer, and
  // checks that the trainer allows `use`. Errors as Trainer::Check() and for from_trainer. Blocks
  // on the disk.
  absl::Status Check(const TrainerSpec& spec, const TrainerUse& use) const;
  // Calls Trainer::RestoreCheckpoint(). Loads a trainer that exists only on disk first, within the
  // maximum number.
  void RestoreCheckpoint(const std::string& name, const std::string& checkpoint,
                         CheckpointDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Restores the state after `step` updates. NOT_FOUND as FindStep() and PastTrainer::At().
  void RestoreStep(const std::string& name, int64_t step, Cancelled cancelled, CheckpointDone done);
  // Creates trainer `new_name` with the state of `name`: after `step` updates, or the current one.
  // FAILED_PRECONDITION without a data directory; NOT_FOUND as RestoreStep(); errors of Create().
  void Fork(const std::string& name, std::optional<int64_t> step, const std::string& new_name,
            Cancelled cancelled, InfoDone done);
  // Calls ReadHistory(). FAILED_PRECONDITION without a journal.
  using HistoryDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<RecordedOperation>>)>;
  void GetHistory(const std::string& name, const HistoryRange& range, HistoryDone done);
  // Calls ReplayAndCompare(), one call after the other.
  using ReplayDone = absl::AnyInvocable<void(absl::StatusOr<ReplayReport>)>;
  void Replay(const std::string& name, const ReplayRange& range, Cancelled cancelled,
              ReplayDone done);
  // Makes running and later calls of RestoreStep(), Fork() and Replay() end with UNAVAILABLE.
  void CancelReplays();
  // Calls Publisher::Rollback().
  void Rollback(std::string model, int64_t version,
                absl::AnyInvocable<void(absl::StatusOr<VersionChange>)> done);

  // Forward to the trainer of that name; NOT_FOUND for an unknown name.
  void Submit(absl::string_view name, Operation operation, OperationDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GetState(absl::string_view name, StateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  void Export(absl::string_view name, ExportFormat format, ExportDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SaveCheckpoint(absl::string_view name, CheckpointDone done) ABSL_LOCKS_EXCLUDED(mu_);
  void ListCheckpoints(absl::string_view name, ListDone done) const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks while the trainer is read.
  absl::Status KeepCheckpoint(absl::string_view name, std::string checkpoint) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks while the trainer is read.
  absl::Status SetBeforeCheckpoint(absl::string_view name, std::function<void()> call) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a batch to the evaluation. Call it again, and use `run`, only after `done`.
  // INVALID_ARGUMENT naming metrics[i].
  void Evaluate(EvaluationRun* run, std::vector<HostTensor> inputs, std::vector<HostTensor> targets,
                EvaluateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  static EvaluationResult Result(const EvaluationRun& run);
  // Adds `result`, of a state after `step` updates, to the trainer's tracked metrics.
  void TrackEvaluation(const EvaluationRun& run, int64_t step, const EvaluationResult& result) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Reads a trainer that has not been in memory since the start of the server.
  void Get(absl::string_view name, InfoDone done) const ABSL_LOCKS_EXCLUDED(mu_);
  void GetSettled(absl::string_view name, InfoDone done) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the model that a trainer started from. NOT_FOUND for an unknown name.
  absl::StatusOr<std::string> ModelOf(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the states of all trainers, sorted by name.
  std::vector<TrainerState> States() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns all trainers, sorted by name. Those that have not been in memory since the start of the
  // server have the arguments of their creation and the counters of their newest checkpoint.
  std::vector<TrainerInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<CreatedTrainer> CreateNow(TrainerSpec spec, const std::string& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the files of a stored trainer. `checkpoints`: nullptr opens them.
  absl::StatusOr<TrainerFiles> FilesOf(const std::string& name,
                                       std::unique_ptr<CheckpointStore> checkpoints) const;
  // Creates a trainer that starts from `model`, and a first checkpoint if it is `stored`. Removes
  // the stored record after an error.
  absl::StatusOr<std::shared_ptr<Trainer>> Start(TrainerSpec spec, const BaseModel& model,
                                                 const std::optional<StoredTrainer>& stored) const;
  // Restores a trainer that exists only on disk, if it has `model`; else ALREADY_EXISTS.
  absl::StatusOr<CreatedTrainer> Continue(const StoredTrainer& stored, const std::string& model)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckRoom() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `use` with the checkpoints of a trainer that has not expired. Blocks.
  absl::Status UseCheckpoints(const std::string& name,
                              absl::FunctionRef<absl::Status(CheckpointStore&)> use) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the stored trainer. FAILED_PRECONDITION if it has no journal.
  absl::StatusOr<StoredTrainer> FindJournaled(const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PastSource> SourceOf(const std::string& name, const Cancelled& cancelled) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<CheckpointInfo> RestoreStepNow(const std::string& name, int64_t step,
                                                const Cancelled& cancelled)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<TrainerInfo> ForkNow(const std::string& name, const std::optional<int64_t>& step,
                                      const std::string& new_name, const Cancelled& cancelled)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Stores a trainer with the arguments of `name`, without a checkpoint. Errors as Fork().
  absl::StatusOr<StoredTrainer> StoreFork(const std::string& name, const std::string& trainer_id,
                                          const std::string& new_name) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds it, once its checkpoint is `written`, or removes it.
  absl::StatusOr<TrainerInfo> AddFork(const StoredTrainer& stored, absl::Status written)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the error of a call that has failed.
  absl::Status ReasonOf(const absl::Status& failure) const;
  // Calls `use(trainer, done)` when the trainer is in memory, and returns its result. Blocks.
  template <typename Result, typename Use>
  Result AskAndWait(const std::string& name, Use use) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns `work()`, which runs on the registry's thread. Blocks.
  template <typename Result, typename Work>
  Result OnThread(Work work);
  // Calls `use` with the checkpoints of `spec.from_trainer`. NOT_FOUND naming from_trainer;
  // INVALID_ARGUMENT if the trainer has another model.
  absl::Status UseSource(const TrainerSpec& spec,
                         absl::FunctionRef<absl::Status(CheckpointStore&)> use) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Restores a trainer that has expired, or whose newest checkpoint cannot be used.
  absl::StatusOr<CheckpointInfo> BringBack(const std::string& name, const std::string& checkpoint)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveTracked(const std::string& name);
  absl::Status DeleteNow(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads a stored trainer and adds it. Arguments as of Load().
  absl::Status RestoreOne(const StoredTrainer& stored, const std::string& checkpoint,
                          std::unique_ptr<CheckpointStore> checkpoints = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Reads a stored trainer. `checkpoint`: empty means the newest. `checkpoints`: nullptr opens
  // them.
  absl::StatusOr<LoadedTrainer> Load(const StoredTrainer& stored, const std::string& checkpoint,
                                     std::unique_ptr<CheckpointStore> checkpoints = nullptr);
  // Adds a trainer in memory.
  void Add(const std::string& name, LoadedTrainer loaded) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a trainer on disk, of which `info` is known.
  void AddOnDisk(TrainerInfo info) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what reads the trainer again; nullptr without storage.
  PagedTrainer::Load Reader(const std::string& name);
  // Returns the trainer of that name. It may be deleted while the caller uses it, and then returns
  // NOT_FOUND. Callers must not keep it: releasing the last reference waits for its operation.
  absl::StatusOr<std::shared_ptr<PagedTrainer>> Find(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `ask(trainer, done)` when the trainer is in memory, or `done` with an error.
  template <typename Callback, typename Ask>
  void AskTrainer(absl::string_view name, Callback done, Ask ask) const ABSL_LOCKS_EXCLUDED(mu_);
  // Saves the trainer, marks it as expired on disk and removes it.
  absl::Status Retire(PagedTrainer& trainer) ABSL_LOCKS_EXCLUDED(mu_);
  void Expire(PagedTrainer& trainer) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees idle trainers, those used least recently first, until each device is within its limit.
  void FreeMemory(const std::vector<std::shared_ptr<PagedTrainer>>& trainers) const;
  std::shared_ptr<PagedTrainer> Take(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<PagedTrainer>> All() const ABSL_LOCKS_EXCLUDED(mu_);
  // The clock thread: calls Tick() periodically.
  void RunClock() ABSL_LOCKS_EXCLUDED(mu_);
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);

  const TrainerServices services_;
  const std::unique_ptr<TrainerStorage> storage_;  // written by the registry's thread
  const SpecReader read_spec_;
  const size_t most_;
  const std::unique_ptr<BaseModels> bases_;

  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<PagedTrainer>, std::less<>> trainers_ ABSL_GUARDED_BY(mu_);
  std::set<std::string, std::less<>> expired_ ABSL_GUARDED_BY(mu_);  // only on disk
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> cancelled_past_ = false;  // by CancelReplays()

  // Last members, joined first: the clock thread and the queues before the thread that they post
  // to.
  TaskThread thread_;
  TaskQueue histories_;
  TaskQueue past_states_;
  TaskQueue replays_;
  std::thread clock_;
};

}  // namespace braid
