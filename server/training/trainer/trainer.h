// A model being trained: weights, optimizer, losses and step counter, which live on the server
// between calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/task_thread.h"
#include "server/models/model_config.h"
#include "server/serving/served_models.h"
#include "server/telemetry/model_metrics.h"
#include "server/telemetry/trainer_metrics.h"
#include "server/training/optim/schedule.h"
#include "server/training/step/data_parallel.h"
#include "server/training/step/evaluation.h"
#include "server/training/trainer/checkpointer.h"
#include "server/training/trainer/host_model.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/sequence.h"
#include "server/training/trainer/trainer_registry.h"
#include "server/training/trainer_spec.h"

namespace braid {

// What a trainer begins from, or goes on with after a restart.
struct BaseModel {
  const ModelConfig& config;
  int64_t version = 0;
  // One on every worker that a placement may name.
  const ReplicaSet& replicas;
};

// Thread-safe. Operations run one after the other on the trainer's own thread, which waits for
// workers.
class Trainer {
 public:
  // Starts from the code and the weights of `base`. `store`: for its checkpoints; nullptr: it has
  // none. `id` tells it from others of its name, before and after. Blocks: the workers copy the
  // replicas. INVALID_ARGUMENT naming the field of `spec` that is wrong, FAILED_PRECONDITION as
  // DataParallel says.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(TrainerSpec spec, std::string id,
                                                         const BaseModel& base,
                                                         std::unique_ptr<CheckpointStore> store,
                                                         const TrainerServices& services);
  // Waits for the operation that runs and for checkpoints that are being written; operations that
  // wait are answered NOT_FOUND.
  ~Trainer();

  using InfoDone = absl::AnyInvocable<void(absl::StatusOr<TrainerInfo>)>;

  // Queues an operation. RESOURCE_EXHAUSTED, at once, if too many wait.
  void Submit(Operation operation, OperationDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // The state_dict, between two operations.
  void GetState(StateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // The model as a file, as it stands between two operations: what `write` gets, by the trainer's
  // thread, or an error.
  void Export(ExportFormat format, ExportDone done) ABSL_LOCKS_EXCLUDED(mu_);

  // An evaluation, to which Evaluate() adds; INVALID_ARGUMENT naming metrics[i].
  absl::StatusOr<std::shared_ptr<Evaluation>> StartEvaluation(
      const std::vector<std::string>& metrics, int64_t k) const;
  // Runs a batch in eval mode and adds it to `evaluation`, which is the caller's again once `done`
  // is called with the updates made so far.
  using EvaluateDone = absl::AnyInvocable<void(absl::StatusOr<int64_t>)>;
  void Evaluate(std::shared_ptr<Evaluation> evaluation, std::vector<HostTensor> inputs,
                std::vector<HostTensor> targets, EvaluateDone done) ABSL_LOCKS_EXCLUDED(mu_);

  // Writes a checkpoint; `done` when it is durable. FAILED_PRECONDITION without a store.
  using SaveDone = absl::AnyInvocable<void(absl::StatusOr<CheckpointInfo>)>;
  void SaveCheckpoint(SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // The same before the server ends, unless what would be written is durable. Where a client that
  // has a policy awaits a Backward it is of before the Forward, which the client sends again: no
  // checkpoint holds a graph.
  void SaveLast(SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Stands where a checkpoint stands; the newest for an empty name. What a client makes after what
  // it knows is refused from now on, unless it is told.
  void RestoreCheckpoint(std::string name, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // Goes on from the newest checkpoint as if nothing had happened.
  void Resume(SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints() const;
  // What is due by the clock: a checkpoint in the background.
  void Tick(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes no operation any more, if the last one was `sequence` and none waits: they are answered
  // NOT_FOUND.
  bool RetireAt(int64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);
  // When the last operation came.
  absl::Time last_used() const ABSL_LOCKS_EXCLUDED(mu_);

  TrainerInfo info() const ABSL_LOCKS_EXCLUDED(mu_);
  // The same when what was queued before is done. RESOURCE_EXHAUSTED as Submit().
  void GetSettled(InfoDone done) ABSL_LOCKS_EXCLUDED(mu_);
  TrainerState state() const ABSL_LOCKS_EXCLUDED(mu_);
  const TrainerSpec& spec() const { return spec_; }
  const std::string& id() const { return id_; }

 private:
  Trainer(TrainerSpec spec, std::string id, ModelConfig config, std::vector<std::string> devices,
          std::shared_ptr<const Objective> objective, Schedule schedule,
          std::unique_ptr<DataParallel> model, std::unique_ptr<HostModel> host_model,
          const TrainerServices& services);

  // Posts `task` to the thread, unless too many wait.
  absl::Status Enqueue(TaskThread::Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs `work()`, which returns what `done` takes, on the thread; or tells it why not.
  template <typename Done, typename Work>
  void Ask(Done done, Work work);
  // OK unless the trainer has been deleted, or is torn.
  absl::Status CheckAlive() const ABSL_LOCKS_EXCLUDED(mu_);
  // OK unless the trainer has been deleted.
  absl::Status CheckThere() const ABSL_LOCKS_EXCLUDED(mu_);

  // The replicas may differ from now on. Returns what every operation is told.
  absl::Status Tear(absl::string_view what, const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mu_);

  // On the trainer's thread.
  absl::StatusOr<OperationResult> Apply(Operation operation) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OperationResult> Execute(Operation& operation);
  absl::StatusOr<Batch> MakeBatch(Operation& operation) const;
  absl::StatusOr<WorkResult> RunWork(Operation& operation, const std::vector<GroupValues>& values);
  absl::StatusOr<OperationResult> RunPublish(const Operation& operation);
  // Copies of `whole` on the workers that serve the model.
  absl::StatusOr<ReplicaSet> MakeReplicas(const Replica& whole);
  absl::StatusOr<std::string> ExportNow(ExportFormat format, const std::vector<StateTensor>& state);
  // The model's own file of `whole` in `format`.
  absl::Status WriteFile(const Replica& whole, ExportFormat format, ByteSink* sink) const;
  // Counts what was done since `start`: losses, updates, schedule.
  void Record(const Operation& operation, const std::vector<GroupValues>& values,
              const WorkResult& work, absl::Time start) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for the metrics; `time`: that counts for the next update.
  void CountWork(const WorkResult& work, absl::Duration time);
  // What info() says of the model.
  void UpdateInfo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A graph is kept for Backward, and the client keeps what it has sent since the last checkpoint:
  // one of now would part the two operations.
  bool awaits_backward() const;
  // `before_forward`: of before the Forward whose graph is kept.
  absl::StatusOr<TrainerCheckpoint> MakeCheckpoint(bool before_forward) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins a checkpoint; the pause that it costs is counted.
  void StartCheckpoint(bool before_forward, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  void StartCheckpointIfDue(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // By any thread: has the trainer's do that.
  void LookForDue(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void Save(bool last, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // The checkpoint of the trainer after operation `sequence`, if it is the last that was written.
  std::optional<CheckpointInfo> WrittenAt(int64_t sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // `resumes`: it is no return to what was left behind.
  void Restore(std::string name, bool resumes, SaveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<CheckpointInfo> RestoreNow(const std::string& name, bool resumes)
      ABSL_LOCKS_EXCLUDED(mu_);

  const TrainerSpec spec_;
  const std::string id_;
  const ModelConfig config_;
  const std::vector<std::string> devices_;
  const std::shared_ptr<const Objective> objective_;
  const TrainerServices services_;

  // Provide their own synchronization.
  const std::unique_ptr<HostModel> host_model_;
  const ModelMetrics model_metrics_;  // keeps the requests of a model that is served no more
  TrainerMetrics metrics_;

  // Touched only by the trainer's thread.
  Schedule schedule_;
  const std::unique_ptr<DataParallel> model_;
  Sequence sequence_;
  // While a graph is kept for Backward: as it was before that Forward.
  std::optional<Sequence> before_forward_;
  double loss_sum_ = 0;  // of the batches whose gradients are accumulated
  int64_t losses_ = 0;
  absl::Duration step_time_;  // of the operations since the last update
  int64_t operations_since_checkpoint_ = 0;
  absl::Time last_checkpoint_ = absl::Now();

  mutable absl::Mutex mu_;
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool deleted_ ABSL_GUARDED_BY(mu_) = false;
  bool look_waits_ ABSL_GUARDED_BY(mu_) = false;  // a task of LookForDue()
  absl::Time last_used_ ABSL_GUARDED_BY(mu_) = absl::Now();
  // Why the replicas may differ: an update, or a restoration, was interrupted halfway.
  absl::Status torn_ ABSL_GUARDED_BY(mu_);
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  std::string last_operator_ ABSL_GUARDED_BY(mu_);
  int64_t durable_ ABSL_GUARDED_BY(mu_) = 0;
  // The one written or restored last. Others are of operations before it, or of such as were left
  // behind by a return to it.
  CheckpointInfo checkpoint_ ABSL_GUARDED_BY(mu_);
  int64_t accumulated_ ABSL_GUARDED_BY(mu_) = 0;
  double lr_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<DeviceMemory> memory_ ABSL_GUARDED_BY(mu_);

  // Joined before all of the above, and after the thread that gives it work.
  std::unique_ptr<Checkpointer> checkpointer_;  // null: no store
  // Last member: joined first.
  TaskThread thread_;
};

}  // namespace braid
