// A served TorchScript model, and trainers that start from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/batching/served_models.h"
#include "server/training/trainer.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/made_model.h"
#include "tests/fakes/pending.h"
#include "tests/fakes/trained_module.h"

namespace braid {

using PendingOperation = Pending<absl::StatusOr<OperationResult>>;

// A batch of `rows` rows of TrainedConfig()'s model, with classes for targets.
inline Operation BatchOperation(int64_t sequence, int64_t rows,
                                OperationKind kind = OperationKind::kStep) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = sequence;
  operation.inputs = {ToHost(Inputs(rows), "x")};
  operation.targets = {ToHost(Classes(rows), "target")};
  return operation;
}

inline Operation OptimStep(int64_t sequence) {
  Operation operation;
  operation.kind = OperationKind::kOptimStep;
  operation.sequence = sequence;
  return operation;
}

// Version 1 of model "m", TrainedConfig()'s, on CPU workers.
class TrainerBench {
 public:
  TrainerBench(const torch::jit::Module& module, int workers)
      : fleet_(workers), models_(fleet_.workers(), fleet_.metrics()) {
    models_.Serve(std::make_shared<MadeModel>(TrainedConfig(), nullptr), /*version=*/1,
                  MakeReplicas(module, TrainedConfig(), static_cast<size_t>(workers)));
  }

  static TrainerSpec Spec(OptimizerSpec optimizer) {
    TrainerSpec spec;
    spec.name = "t";
    spec.model = "m";
    spec.loss.name = "cross_entropy";
    spec.optimizer = optimizer;
    return spec;
  }

  std::unique_ptr<Trainer> Create(OptimizerSpec optimizer) {
    auto trainer =
        Trainer::Create(Spec(optimizer), *models_.FindReplicas("m", 0), &models_, metrics());
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return trainer.ok() ? *std::move(trainer) : nullptr;
  }

  // What the served version makes of Inputs(rows).
  absl::StatusOr<InferenceResult> Infer(int64_t rows) {
    Pending<absl::StatusOr<InferenceResult>> pending;
    (*models_.Find("m", 0))
        ->Push(std::make_shared<InferenceRequest>(
            std::vector<HostTensor>{ToHost(Inputs(rows), "x")}, rows, absl::Now(),
            absl::InfiniteFuture(), pending.done()));
    return pending.Wait();
  }

  const WorkerFleet& fleet() const { return fleet_; }
  ServedModels* models() { return &models_; }
  Metrics* metrics() { return fleet_.metrics(); }

 private:
  WorkerFleet fleet_;
  ServedModels models_;
};

}  // namespace braid
