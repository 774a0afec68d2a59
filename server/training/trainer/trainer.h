// A model in training: weights, optimizer, losses and step counter, kept on the server between
// calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/task_pool.h"
#include "server/models/model_config.h"
#include "server/serving/served_models.h"
#include "server/telemetry/model_metrics.h"
#include "server/telemetry/trainer_metrics.h"
#include "server/tracking/tracking.h"
#include "server/training/optim/schedule.h"
#include "server/training/step/data_parallel.h"
#include "server/training/step/evaluation.h"
#include "server/training/trainer/checkpointer.h"
#include "server/training/trainer/evaluation_result.h"
#include "server/training/trainer/host_model.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/operation_journal.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/sequence.h"
#include "server/training/trainer/trainer_registry.h"
#include "server/training/trainer_spec.h"

namespace braid {

// The served version that a trainer starts from.
struct BaseModel {
  const ModelConfig& config;
  int64_t version = 0;
  // One replica on every worker that a placement may name.
  const ReplicaSet& replicas;
};

// Files of a trainer.
struct TrainerFiles {
  std::unique_ptr<CheckpointStore> checkpoints = nullptr;  // nullptr: nothing
  std::string journal_directory = {};
};

// Owned by the TrainerRegistry. Thread-safe. Operations run one after the other, each on a thread
// of the trainer pool, which waits for the workers.
class Trainer {
 public:
  // Starts from the code and the weights of `base`. `id`: unique, also among trainers that have had
  // the same name. Blocks while the workers copy
  // the replicas. INVALID_ARGUMENT naming the wrong field of `spec`; FAILED_PRECONDITION from
  // DataParallel::Create().
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(TrainerSpec spec, std::string id,
                                                         const BaseModel& base, TrainerFiles files,
                                                         const TrainerServices& services);
  // Checks what Create() checks, as far as that takes no memory for gradients and optimizer, and
  // `use`. Errors as there, and as Objective::CheckTargets(); naming evaluation.metrics[i] or
  // evaluation.k. Blocks while the workers copy the replicas.
  static absl::Status Check(TrainerSpec spec, const BaseModel& base, const TrainerUse& use);
  // Waits for the running operation and for checkpoints that are being written. Operations in the
  // queue end with NOT_FOUND.
  ~Trainer();

  using InfoDone = absl::AnyInvocable<void(absl::StatusOr<TrainerInfo>)>;

  // Queues an operation. RESOURCE_EXHAUSTED if the queue is full.
  void Submit(Operation operation, OperationDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the state_dict between two operations.
  void GetState(StateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Exports the model as a file between two operations. `done` receives the file's bytes.
  void Export(ExportFormat format, ExportDone done) ABSL_LOCKS_EXCLUDED(mu_);

  // Creates an evaluation, to which Evaluate() adds. INVALID_ARGUMENT naming metrics[i].
  absl::StatusOr<std::shared_ptr<Evaluation>> StartEvaluation(
      const std::vector<std::string>& metrics, int64_t k) const;
  // Runs a batch in eval mode and adds it to `evaluation`, which the caller must not use before
  // `done` is called. `done` receives the number of updates so far.
  using EvaluateDone = absl::AnyInvocable<void(absl::StatusOr<int64_t>)>;
  void Evaluate(std::shared_ptr<Evaluation> evaluation, BatchLayout layout,
                std::vector<HostTensor> inputs, std::vector<HostTensor> targets, EvaluateDone done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the result of an evaluation of the state after `step` updates to the tracked metrics.
  void TrackEvaluation(int64_t step, const EvaluationResult& result);

  // Writes a checkpoint. Calls `done` when it is durable. FAILED_PRECONDITION without a store.
  using SaveDone = absl::AnyInvocable<void(absl::StatusOr<CheckpointInfo>)>;
  void SaveCheckpoint(SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the last checkpoint before the server ends, unless the state is durable already. If a
  // Backward is pending and the trainer has a checkpoint policy, saves the state before its
  // Forward, which the client sends again: graphs cannot be checkpointed.
  void SaveLast(SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Restores a checkpoint; an empty name means the newest. Operations of clients that do not know
  // of the restore fail from now on: it changes Sequence::last_operator().
  void RestoreCheckpoint(std::string name, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Restores the newest checkpoint after a restart, and applies the operations after it that the
  // journal has. Clients continue without noticing. DATA_LOSS if the journal is damaged.
  void Resume(StoredCheckpoint read, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Restores a state that the trainer had earlier, like RestoreCheckpoint().
  void RestoreState(TrainerCheckpoint state, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints() const;
  // Calls `call` before each checkpoint is written, on another thread, and after OperationDone of
  // the operations in it. nullptr: calls nothing. Waits for a call in progress.
  void SetBeforeCheckpoint(std::function<void()> call) ABSL_LOCKS_EXCLUDED(before_mu_);
  // Calls Checkpointer::Keep(). FAILED_PRECONDITION without a store.
  absl::Status KeepCheckpoint(std::string name);
  // Keeps the journal and the checkpoints as they are until the returned object is gone, or the
  // trainer is.
  std::shared_ptr<void> UseHistory() const;
  // Calls Checkpointer::Use(). FAILED_PRECONDITION without a store. Blocks.
  absl::Status UseCheckpoints(absl::FunctionRef<absl::Status(CheckpointStore&)> use);
  // Starts a checkpoint in the background if one is due at `now`.
  void Tick(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Stops taking operations if the last one was `sequence` and the queue is empty: later operations
  // end with NOT_FOUND. Returns whether the trainer has stopped.
  bool RetireAt(int64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if no operation is queued, no graph is kept and the replicas are equal: a
  // checkpoint then has the whole state.
  bool idle() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when the last operation was queued.
  absl::Time last_used() const ABSL_LOCKS_EXCLUDED(mu_);

  // The next four methods are for PastTrainer: a trainer without files and without submitted
  // operations.
  absl::Status Start(StoredCheckpoint read) ABSL_LOCKS_EXCLUDED(mu_);
  // Applies an operation of the journal. DATA_LOSS if it follows another state.
  absl::StatusOr<OperationResult> Replay(JournaledOperation journaled) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<TrainerCheckpoint> Checkpoint() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a checkpoint of the current state to the store of another trainer.
  absl::Status WriteTo(CheckpointStore& store) ABSL_LOCKS_EXCLUDED(mu_);

  TrainerInfo info() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` with info() after the operations that are in the queue now. RESOURCE_EXHAUSTED if
  // the queue is full.
  void GetSettled(InfoDone done) ABSL_LOCKS_EXCLUDED(mu_);
  TrainerState state() const ABSL_LOCKS_EXCLUDED(mu_);
  const TrainerSpec& spec() const { return spec_; }
  const std::string& id() const { return id_; }
  // Returns PyTorch's version, the devices and their numbers of threads, on which the bits of
  // results depend.
  const std::string& process() const { return process_; }

 private:
  Trainer(TrainerSpec spec, std::string id, ModelConfig config, std::vector<std::string> devices,
          std::shared_ptr<const Objective> objective, Schedule schedule,
          std::unique_ptr<DataParallel> model, std::unique_ptr<const HostModel> host_model,
          const TrainerServices& services);

  // Queues `task`. RESOURCE_EXHAUSTED if the queue is full.
  absl::Status Enqueue(TaskQueue::Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done(work())` in the queue, or `done` with an error.
  template <typename Done, typename Work>
  void RunInQueue(Done done, Work work);
  // Returns an error if the trainer has been deleted or is poisoned.
  absl::Status CheckUsable() const ABSL_LOCKS_EXCLUDED(mu_);
  // NOT_FOUND if the trainer has been deleted.
  absl::Status CheckNotDeleted() const ABSL_LOCKS_EXCLUDED(mu_);

  // Marks the trainer as poisoned: `what` was interrupted by `failure`, so the replicas may differ.
  // Returns the error of all later operations.
  absl::Status Poison(absl::string_view what, const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mu_);

  // In the trainer's queue.
  // Sets `began` once the operation is in the journal.
  absl::StatusOr<OperationResult> Apply(Operation operation, bool* began) ABSL_LOCKS_EXCLUDED(mu_);
  // Updates counters and history for an operation that was applied, and fills in the rest of
  // `result`.
  void Complete(const Operation& operation, OperationResult* result) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` with `result` when the operation is durable.
  void Reply(absl::StatusOr<OperationResult> result, OperationDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Tries again to write what the journal could not write. Returns the error of JournalError().
  absl::Status RetryJournal();
  // Returns the error of an operation if the journal fails with `status`.
  absl::Status JournalError(const absl::Status& status) const;
  // Applies the operations of the journal after the checkpoint that was restored.
  absl::Status ReplayJournal(int64_t line) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns `work()`, which uses the devices. Work for a job first passes the job gate.
  template <typename Work>
  auto InTurn(Work work);
  absl::StatusOr<OperationResult> Execute(Operation& operation);
  // Moves the batch of the operation's tensors to dim 0.
  absl::Status MoveBatches(Operation& operation) const;
  absl::StatusOr<Batch> MakeBatch(Operation& operation) const;
  // Returns the outputs in the operation's layout.
  absl::StatusOr<OperationResult> RunForward(const Batch& batch, const Operation& operation);
  // Checks that the operation is possible in the trainer's loss mode and state.
  absl::Status CheckOperation(const Operation& operation) const;
  // Calls `run` within the profiler, if there is one.
  absl::StatusOr<OperationResult> Profiled(
      absl::FunctionRef<absl::StatusOr<OperationResult>()> run);
  absl::StatusOr<OperationResult> RunPublish(const Operation& operation);
  // Sets the state of a published version's files, and waits for them if `operation` does.
  void SetDurability(const Operation& operation, OperationResult* result) const;
  // Makes replicas with the trainer's weights for the workers that serve the model. on_host: the
  // result of DataParallel::Share() for the CPU.
  absl::StatusOr<ReplicaSet> MakeReplicas(const std::vector<StateEntry>& on_host);
  absl::StatusOr<std::string> ExportNow(ExportFormat format, const std::vector<StateTensor>& state);
  // Writes the model file of `whole` in `format`.
  absl::Status WriteFile(const Replica& whole, ExportFormat format, ByteSink* sink) const;
  // Records the loss over `rows` rows and the update of an operation that began at `start`, and
  // advances the schedule.
  void Record(const Operation& operation, int64_t rows, absl::Time start,
              const OperationResult& result) ABSL_LOCKS_EXCLUDED(mu_);
  // Records an operation in the metrics.
  void RecordMetrics(const OperationResult& result);
  // Returns the learning rates of the groups with parameters to update. values: one per group.
  std::vector<GroupLearningRate> LearningRates(const std::vector<GroupValues>& values) const;
  // Adds update `step` to the tracked metrics. `loss`: mean of its batches. `rows` and `time`: of
  // its operations.
  void TrackStep(int64_t step, const OperationResult& result, std::optional<double> loss,
                 int64_t rows, absl::Duration time);
  void RecordLearningRates(const std::vector<GroupLearningRate>& rates);
  // Updates the model's part of info().
  void UpdateInfo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns whether a graph is kept for Backward and the client keeps its operations since the last
  // checkpoint, so that a checkpoint now would separate Forward and Backward.
  bool awaits_backward() const;
  // `before_forward`: of the state before the Forward whose graph is kept.
  absl::StatusOr<TrainerCheckpoint> MakeCheckpoint(bool before_forward) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until the versions and metrics of the operations up to `sequence` are written: clients
  // do not repeat operations that a checkpoint contains.
  void WaitForFiles(int64_t sequence) ABSL_LOCKS_EXCLUDED(before_mu_);
  // Copies the state and writes it in the background. Records how long the trainer paused.
  void StartCheckpoint(bool before_forward, bool automatic, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether a restart would take long to apply the journal.
  bool JournalIsLong() const ABSL_LOCKS_EXCLUDED(mu_);
  void StartCheckpointIfDue(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Posts StartCheckpointIfDue() to the trainer's queue. Called by any thread.
  void PostCheckpointCheck(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void Save(bool last, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the last checkpoint if it is of the state after operation `sequence`.
  std::optional<CheckpointInfo> WrittenAt(int64_t sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done(work())` in the queue, also for a poisoned trainer, or `done` with an error.
  template <typename Work>
  void Restore(Work work, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // `resumes`: continues after a restart; else goes back to an earlier state.
  absl::StatusOr<CheckpointInfo> RestoreNow(StoredCheckpoint read, bool resumes)
      ABSL_LOCKS_EXCLUDED(mu_);

  const TrainerSpec spec_;
  const std::string id_;
  const ModelConfig config_;
  const std::vector<std::string> devices_;
  std::string process_;
  const std::shared_ptr<const Objective> objective_;
  const TrainerServices services_;

  // Provide their own synchronization.
  const std::unique_ptr<const HostModel> host_model_;
  const ModelMetrics model_metrics_;  // keeps the metrics of a model that is no longer served
  TrainerMetrics metrics_;
  const std::shared_ptr<TrackedRun> tracked_;  // nullptr: metrics are not tracked

  // Touched only in the trainer's queue.
  Schedule schedule_;
  const std::unique_ptr<DataParallel> model_;
  Sequence sequence_;
  // The sequence before the Forward whose graph is kept.
  std::optional<Sequence> before_forward_;
  double loss_sum_ = 0;  // of the batches whose gradients are accumulated
  int64_t losses_ = 0;
  absl::Duration step_time_;  // of the operations since the last update
  int64_t step_rows_ = 0;     // that they trained on
  int64_t operations_since_checkpoint_ = 0;
  absl::Duration time_since_checkpoint_;  // of these operations
  int64_t journal_bytes_at_checkpoint_ = 0;
  absl::Time last_checkpoint_ = absl::Now();

  std::atomic<bool> journal_failed_ = false;  // the last Sync() failed
  // Number of objects that UseHistory() has returned.
  const std::shared_ptr<std::atomic<int>> history_users_ = std::make_shared<std::atomic<int>>(0);
  int64_t journal_bytes_counted_ = 0;  // in the metrics; used by callbacks of Sync()

  absl::Mutex before_mu_;
  std::function<void()> before_checkpoint_ ABSL_GUARDED_BY(before_mu_);  // nullptr: none

  mutable absl::Mutex mu_;
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool deleted_ ABSL_GUARDED_BY(mu_) = false;
  // Time of the check that PostCheckpointCheck() has posted and that has not begun.
  std::optional<absl::Time> check_at_ ABSL_GUARDED_BY(mu_);
  absl::Time last_used_ ABSL_GUARDED_BY(mu_) = absl::Now();
  // Why the replicas may differ: an update or a restore was interrupted. OK: they are equal.
  absl::Status poisoned_ ABSL_GUARDED_BY(mu_);
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  std::string last_operator_ ABSL_GUARDED_BY(mu_);
  int64_t durable_ ABSL_GUARDED_BY(mu_) = 0;             // in a checkpoint, or in the journal
  absl::Duration checkpoint_time_ ABSL_GUARDED_BY(mu_);  // until the last one was written
  // The checkpoint written or restored last.
  CheckpointInfo checkpoint_ ABSL_GUARDED_BY(mu_);
  int64_t accumulated_ ABSL_GUARDED_BY(mu_) = 0;
  double lr_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<GroupLearningRate> lrs_ ABSL_GUARDED_BY(mu_);
  std::vector<DeviceMemory> memory_ ABSL_GUARDED_BY(mu_);

  // Ends before all of the above, and after the queue that posts to it.
  std::unique_ptr<OperationJournal> journal_;   // nullptr: none
  std::unique_ptr<Checkpointer> checkpointer_;  // nullptr: no store
  // Last member: ends first.
  TaskQueue queue_;
};

}  // namespace braid
