// A model being trained: weights, optimizer, loss and step counter, which live on the server
// between calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/task_thread.h"
#include "server/batching/batch_queue.h"
#include "server/batching/served_models.h"
#include "server/models/model_config.h"
#include "server/telemetry/metrics.h"
#include "server/training/data_parallel.h"
#include "server/training/loss.h"
#include "server/training/operation.h"
#include "server/training/optimizer.h"
#include "server/training/sequence.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Thread-safe. Operations run one after the other on the trainer's own thread, which waits for
// workers.
class Trainer {
 public:
  // Starts from the weights of `base`. `models` and `metrics` outlive the trainer. Blocks: the
  // workers copy the replicas. INVALID_ARGUMENT, FAILED_PRECONDITION as Loss, CheckOptimizer() and
  // DataParallel say.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(TrainerSpec spec,
                                                         std::shared_ptr<const BatchQueue> base,
                                                         ServedModels* models, Metrics* metrics);
  // Waits for the operation that runs; those that wait are answered NOT_FOUND.
  ~Trainer();

  // Queues an operation. RESOURCE_EXHAUSTED, at once, if too many wait.
  void Submit(Operation operation, OperationDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // The state_dict, between two operations.
  void GetState(StateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  TrainerInfo info() const ABSL_LOCKS_EXCLUDED(mu_);
  const TrainerSpec& spec() const { return spec_; }

 private:
  Trainer(TrainerSpec spec, ModelConfig config, std::unique_ptr<DataParallel> model,
          std::vector<std::string> devices, ServedModels* models, Metrics* metrics);

  // Posts `task` to the thread, unless too many wait.
  absl::Status Enqueue(TaskThread::Task task) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckAlive() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OperationResult> Apply(Operation operation) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OperationResult> Execute(Operation& operation) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OperationResult> RunBatch(Operation& operation) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunUpdate(const OptimizerSpec& optimizer) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OperationResult> RunPublish();

  // Immutable after construction.
  const TrainerSpec spec_;
  const ModelConfig config_;
  const std::vector<std::string> devices_;
  ServedModels* const models_;
  Metrics* const metrics_;

  // Touched only by the trainer's thread.
  const std::unique_ptr<DataParallel> model_;
  Sequence sequence_;

  mutable absl::Mutex mu_;
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool deleted_ ABSL_GUARDED_BY(mu_) = false;
  // Why the replicas may differ: an update was interrupted halfway.
  absl::Status torn_ ABSL_GUARDED_BY(mu_);
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t accumulated_ ABSL_GUARDED_BY(mu_) = 0;

  // Last member: joined first.
  TaskThread thread_;
};

}  // namespace braid
