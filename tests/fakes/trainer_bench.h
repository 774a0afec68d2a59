// A served TorchScript model, and trainers that start from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "server/serving/load_model.h"
#include "server/serving/served_models.h"
#include "server/tracking/tracking.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/trainer.h"
#include "tests/fakes/host_tensors.h"
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
  operation.fingerprint.low = static_cast<uint64_t>(rows);
  operation.inputs = {ToHost(Inputs(rows), "x")};
  operation.targets = {ToHost(Classes(rows), "target")};
  return operation;
}

// One without a batch.
inline Operation BareOperation(int64_t sequence, OperationKind kind) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = sequence;
  return operation;
}
inline Operation OptimStep(int64_t sequence) {
  return BareOperation(sequence, OperationKind::kOptimStep);
}
inline Operation Publish(int64_t sequence) {
  return BareOperation(sequence, OperationKind::kPublish);
}

// A trainer whose client computes the loss, and what it is sent.
inline TrainerSpec ClientSpec() {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
  spec.losses.clear();
  spec.loss_mode = LossMode::kClient;
  return spec;
}
inline Operation KeptForward(int64_t sequence) {
  Operation operation = BatchOperation(sequence, 5, OperationKind::kForward);
  operation.targets.clear();
  operation.keep_graph = true;
  return operation;
}
inline Operation BackwardOfOnes(int64_t sequence) {
  Operation operation = BareOperation(sequence, OperationKind::kBackward);
  operation.output_gradients = {ToHost(at::ones({5, 4}, at::kDouble), "y")};
  return operation;
}

// Operations of trainers that block until they are done.
inline absl::StatusOr<OperationResult> Do(Trainer& trainer, Operation operation) {
  PendingOperation pending;
  trainer.Submit(std::move(operation), pending.done());
  return pending.Wait();
}
inline absl::StatusOr<State> StateOf(Trainer& trainer) {
  Pending<absl::StatusOr<std::vector<StateTensor>>> pending;
  trainer.GetState(pending.done());
  BRAID_RETURN_IF_ERROR(pending.Wait().status());
  State state;
  for (const StateTensor& entry : *pending.Wait()) {
    state[entry.tensor.name] = View(entry.tensor).clone();
  }
  return state;
}
inline absl::StatusOr<CheckpointInfo> Save(Trainer& trainer) {
  Pending<absl::StatusOr<CheckpointInfo>> pending;
  trainer.SaveCheckpoint(pending.done());
  return pending.Wait();
}
inline absl::StatusOr<CheckpointInfo> Restore(Trainer& trainer, const std::string& name = "") {
  Pending<absl::StatusOr<CheckpointInfo>> pending;
  trainer.RestoreCheckpoint(name, pending.done());
  return pending.Wait();
}
// Resumes the trainer, like a start of the server.
inline absl::StatusOr<CheckpointInfo> Resume(Trainer& trainer) {
  StoredCheckpoint read;
  BRAID_RETURN_IF_ERROR(trainer.UseCheckpoints([&](CheckpointStore& store) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(read, trainer.spec().journal == JournalMode::kOperations
                                     ? ReadForRestart(store)
                                     : ReadCheckpoint(store, /*name=*/""));
    return absl::OkStatus();
  }));
  Pending<absl::StatusOr<CheckpointInfo>> pending;
  trainer.Resume(std::move(read), pending.done());
  return pending.Wait();
}

// Version 1 of model "m", TrainedConfig()'s, on CPU workers. Trainers end before it.
class TrainerBench {
 public:
  // `data_dir`: where trainers and versions are kept; empty: in memory. `repository`: where the
  // model's file is, for what goes back to it.
  TrainerBench(const torch::jit::Module& module, int workers, std::string data_dir = "",
               std::string repository = "")
      : TrainerBench(module, std::make_unique<WorkerFleet>(workers), std::move(data_dir),
                     std::move(repository)) {}
  TrainerBench(const torch::jit::Module& module, std::unique_ptr<WorkerFleet> fleet,
               std::string data_dir = "", std::string repository = "")
      : data_dir_(std::move(data_dir)),
        fleet_(std::move(fleet)),
        models_(fleet_->workers(), fleet_->metrics()) {
    models_.Serve({TrainedConfig(), /*version=*/1,
                   ReplicaSet(fleet_->workers(),
                              MakeReplicas(module, TrainedConfig(), fleet_->workers().size()))});
    auto publisher = Publisher::Open(&models_, std::move(repository), data_dir_);
    EXPECT_TRUE(publisher.ok()) << publisher.status();
    publisher_ = *std::move(publisher);
    if (!data_dir_.empty()) {
      auto shared_files = SharedFiles::Open(absl::StrCat(data_dir_, "/shared"));
      EXPECT_TRUE(shared_files.ok()) << shared_files.status();
      shared_files_ = *std::move(shared_files);
    }
  }

  // A trainer of the id "id", whose checkpoints are in the data directory if there is one.
  absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainerSpec& spec) {
    TrainerFiles files;
    if (!data_dir_.empty()) {
      BRAID_ASSIGN_OR_RETURN(files.checkpoints,
                             CheckpointStore::Open(checkpoints(), shared_files_.get()));
      files.journal_directory = absl::StrCat(data_dir_, "/journal");
    }
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> base, models_.FindReplicas("m", 0));
    return Trainer::Create(spec, "id", {base->config(), base->version(), base->replicas()},
                           std::move(files), services());
  }
  std::unique_ptr<Trainer> MustCreate(const TrainerSpec& spec) {
    auto trainer = Create(spec);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return trainer.ok() ? *std::move(trainer) : nullptr;
  }

  // Runs the served version on Inputs(rows).
  absl::StatusOr<InferenceResult> Infer(int64_t rows) {
    Pending<absl::StatusOr<InferenceResult>> pending;
    InferenceRequest::Schedule schedule;
    schedule.arrival = absl::Now();
    const auto request = std::make_shared<InferenceRequest>(
        std::vector<HostTensor>{ToHost(Inputs(rows), "x")}, rows, schedule, pending.done());
    BRAID_RETURN_IF_ERROR((*models_.Find("m", 0))->Push(request));
    return pending.Wait();
  }

  std::string checkpoints() const { return absl::StrCat(data_dir_, "/checkpoints"); }
  const WorkerFleet& fleet() const { return *fleet_; }
  ServedModels* models() { return &models_; }
  Publisher* publisher() { return publisher_.get(); }
  Metrics* metrics() { return fleet_->metrics(); }
  // Has trainers write their metrics to files. `tracking` outlives them.
  void Track(Tracking* tracking) { tracking_ = tracking; }
  // Has trainers in the data directory keep journals.
  void KeepJournals(RequestReader read_operation) { read_operation_ = std::move(read_operation); }
  TrainerServices services() {
    TrainerServices services{&models_, publisher_.get(), metrics(), &pools_};
    services.tracking = tracking_;
    services.read_operation = read_operation_;
    return services;
  }

 private:
  const std::string data_dir_;
  std::unique_ptr<SharedFiles> shared_files_;
  const std::unique_ptr<WorkerFleet> fleet_;
  ServedModels models_;
  std::unique_ptr<Publisher> publisher_;
  TrainerPools pools_;
  Tracking* tracking_ = nullptr;
  RequestReader read_operation_;
};

}  // namespace braid
