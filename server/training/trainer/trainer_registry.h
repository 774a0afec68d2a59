// All trainers of the server, by name.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/task_thread.h"
#include "server/serving/served_models.h"
#include "server/storage/checkpoint_store.h"
#include "server/telemetry/metrics.h"
#include "server/training/trainer/evaluation_result.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/step_profiler.h"
#include "server/training/trainer_spec.h"

namespace braid {

class Evaluation;
class Publisher;
class Trainer;
class TrainerStorage;
struct StoredTrainer;

// What trainers work with. All of it outlives them.
struct TrainerServices {
  ServedModels* models = nullptr;
  Publisher* publisher = nullptr;
  Metrics* metrics = nullptr;
  StepProfiler* profiler = nullptr;  // null: nothing is profiled
  bool overlap_reduction = false;    // Placement::overlap_reduction
};

// An evaluation under way.
struct EvaluationRun {
  std::string trainer;
  std::shared_ptr<Evaluation> evaluation;
};

// Thread-safe. What blocks, creating, deleting and restoring, happens on a thread of the registry's
// own.
class TrainerRegistry {
 public:
  using InfoDone = absl::AnyInvocable<void(absl::StatusOr<TrainerInfo>)>;
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using CheckpointDone = absl::AnyInvocable<void(absl::StatusOr<CheckpointInfo>)>;
  // With the updates that the trainer has made.
  using EvaluateDone = absl::AnyInvocable<void(absl::StatusOr<int64_t>)>;
  // Reads a stored trainer's request.
  using SpecReader = std::function<absl::StatusOr<TrainerSpec>(const std::string& request)>;

  // What `services` points to outlives the registry. `storage`: nullptr: trainers live in memory.
  // `most`: trainers at work at once, but for those that RestoreStored() brings back.
  TrainerRegistry(const TrainerServices& services, std::unique_ptr<TrainerStorage> storage,
                  SpecReader read_spec, size_t most);
  ~TrainerRegistry();

  // Brings back the stored trainers, each where its newest checkpoint stands. Those that cannot be
  // are logged and left on the disk. Blocks.
  void RestoreStored() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a checkpoint of every trainer that has operations since its last one, as
  // Trainer::SaveLast does; false, and logged, if one could not be written. Blocks.
  bool SaveAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Creates a trainer; an empty name is the model's. `request` is kept, for RestoreStored().
  // NOT_FOUND for an unknown model, ALREADY_EXISTS for a name that is taken, unless
  // `spec.request_id` and the model say that it was this very call that took it, INVALID_ARGUMENT
  // naming the field that is wrong, RESOURCE_EXHAUSTED if there are as many as there may be.
  void Create(TrainerSpec spec, std::string request, InfoDone done);
  // Waits for the trainer's running operation. NOT_FOUND if there is none of that name.
  void Delete(std::string name, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // As Trainer's; brings back one that is on the disk alone, if there may be one more.
  void RestoreCheckpoint(std::string name, std::string checkpoint, CheckpointDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As Publisher's.
  void Rollback(std::string model, int64_t version,
                absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done);

  // As Trainer's; NOT_FOUND if there is none of that name.
  void Submit(absl::string_view name, Operation operation, OperationDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GetState(absl::string_view name, StateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  void Export(absl::string_view name, ExportFormat format, ExportDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SaveCheckpoint(absl::string_view name, CheckpointDone done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // `metrics` and `k` as Evaluation's.
  absl::StatusOr<EvaluationRun> StartEvaluation(absl::string_view name,
                                                const std::vector<std::string>& metrics,
                                                int64_t k) const ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a batch, one after the other.
  void Evaluate(const EvaluationRun& run, std::vector<HostTensor> inputs,
                std::vector<HostTensor> targets, EvaluateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  static EvaluationResult Result(const EvaluationRun& run);
  absl::StatusOr<TrainerInfo> Get(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  void GetSettled(absl::string_view name, InfoDone done) const ABSL_LOCKS_EXCLUDED(mu_);
  // The model that a trainer began from. NOT_FOUND as above.
  absl::StatusOr<std::string> ModelOf(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of all trainers.
  std::vector<TrainerState> States() const ABSL_LOCKS_EXCLUDED(mu_);
  // By name.
  std::vector<TrainerInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<TrainerInfo> CreateNow(TrainerSpec spec, const std::string& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckRoom() const ABSL_LOCKS_EXCLUDED(mu_);
  // One that is on the disk alone.
  absl::StatusOr<CheckpointInfo> BringBack(const std::string& name, const std::string& checkpoint)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DeleteNow(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RestoreOne(const StoredTrainer& stored, const std::string& checkpoint)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A trainer to work with; it may be deleted meanwhile, and then answers NOT_FOUND. Not to be
  // kept: the last to hold it waits for its threads.
  absl::StatusOr<std::shared_ptr<Trainer>> Find(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `ask(trainer, done)`, or tells `done` that there is no such trainer.
  template <typename Callback, typename Ask>
  void AskTrainer(absl::string_view name, Callback done, Ask ask) const ABSL_LOCKS_EXCLUDED(mu_);
  void Expire(const std::shared_ptr<Trainer>& trainer) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Trainer> Take(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<Trainer>> All() const ABSL_LOCKS_EXCLUDED(mu_);
  // Once a while: what is due by the clock.
  void RunClock() ABSL_LOCKS_EXCLUDED(mu_);
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);

  const TrainerServices services_;
  const std::unique_ptr<TrainerStorage> storage_;  // used by the registry's thread
  const SpecReader read_spec_;
  const size_t most_;

  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<Trainer>, std::less<>> trainers_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last members: joined first, the clock before the thread that it gives work.
  TaskThread thread_;
  std::thread clock_;
};

}  // namespace braid
