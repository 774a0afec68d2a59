// Trainer of a job, in the server's trainer registry.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jobs/training_job.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/trainer_registry.h"
#include "server/training/trainer_spec.h"

namespace braid {

std::string JobTrainerName(absl::string_view job_id);

// Gives a one-cycle schedule without a number of steps the job's.
TrainerSpec WithTotalSteps(TrainerSpec spec, int64_t total_steps);

class RegistryTrainer final : public JobTrainer {
 public:
  // `trainers` outlives the object. `request`: TrainingJobSpec::trainer_request. `metrics`, `k`: of
  // evaluations.
  RegistryTrainer(TrainerRegistry* trainers, TrainerSpec spec,
                  std::function<std::string(int64_t total_steps)> request,
                  std::vector<std::string> metrics, int64_t k)
      : trainers_(trainers),
        spec_(std::move(spec)),
        request_(std::move(request)),
        metrics_(std::move(metrics)),
        k_(k) {
    spec_.exist_ok = true;  // continues after a restart
  }

  absl::StatusOr<Position> Open(const std::string& best, int64_t total_steps,
                                std::function<void()> before_checkpoint) override;
  void Close() override;
  void Step(int64_t sequence, TrainingBatch batch, OperationDone done) override;
  absl::StatusOr<EvaluationResult> Evaluate(BatchStream* batches) override;
  absl::Status SaveCheckpoint() override;
  absl::StatusOr<std::string> KeepBest() override;
  absl::Status RestoreBest(const std::string& checkpoint) override;
  absl::StatusOr<int64_t> Publish(int64_t step) override;
  void Release() override;

 private:
  absl::StatusOr<TrainerInfo> FindOrCreate(int64_t total_steps);
  absl::StatusOr<CheckpointInfo> Save();
  absl::Status Restore(const std::string& checkpoint);
  absl::StatusOr<OperationResult> Run(Operation operation);

  TrainerRegistry* const trainers_;
  TrainerSpec spec_;
  const std::function<std::string(int64_t total_steps)> request_;
  const std::vector<std::string> metrics_;
  const int64_t k_;
};

}  // namespace braid
