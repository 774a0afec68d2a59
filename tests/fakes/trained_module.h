// A TorchScript module in data-parallel training on CPU workers, and the same in plain LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "server/base/random_seed.h"
#include "server/base/status.h"
#include "server/devices/communicator.h"
#include "server/parallel/host_copy.h"
#include "server/training/step/data_parallel.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/worker_fleet.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {

// x FP64 [B, 3] to y FP64 [B, 4].
inline ModelConfig TrainedConfig() {
  return MakeConfig(/*max_batch_size=*/64, {{"x", DataType::kFp64, {3}}},
                    {{"y", DataType::kFp64, {4}}});
}

// Trainer "t" of model "m".
inline TrainerSpec TrainedSpec(OptimizerSpec optimizer = SgdSpec{.lr = 0.5},
                               const std::string& loss = "cross_entropy") {
  TrainerSpec spec;
  spec.name = "t";
  spec.model = "m";
  spec.losses = {{.name = loss}};
  spec.optimizer = optimizer;
  return spec;
}

// Values without a pattern, for a parameter.
inline at::Tensor Weights(at::IntArrayRef shape, double step) {
  const int64_t count = c10::multiply_integers(shape);
  return (at::arange(count, at::kDouble) * step).sin().view(shape).requires_grad_(true);
}

// 3 → 5 → 4 with tanh between, in float64. forward() is for the test to define.
inline torch::jit::Module TwoLayers() {
  torch::jit::Module module = NewModule();
  module.register_parameter("w1", Weights({3, 5}, 0.7), /*is_buffer=*/false);
  module.register_parameter("b1", Weights({5}, 1.1), /*is_buffer=*/false);
  module.register_parameter("w2", Weights({5, 4}, 1.3), /*is_buffer=*/false);
  return module;
}

inline torch::jit::Module Mlp() {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return torch.tanh(x @ self.w1 + self.b1) @ self.w2\n");
  return module;
}

// Rows that differ from each other, and classes for them.
inline at::Tensor Inputs(int64_t rows) {
  return (at::arange(rows * 3, at::kDouble) * 0.9).cos().view({rows, 3});
}
inline at::Tensor Classes(int64_t rows) { return at::arange(rows).remainder(4); }

using State = std::map<std::string, at::Tensor>;

// A DataParallel and the schedule that gives it its values.
class TrainedModule {
 public:
  // Makes the communicator of the replicas; nullptr: they share memory.
  using MakeLink =
      std::function<std::unique_ptr<Communicator>(const std::vector<Worker*>& replicas)>;

  explicit TrainedModule(const torch::jit::Module& module, int workers,
                         TrainerSpec spec = TrainedSpec(), ModelConfig config = TrainedConfig())
      : TrainedModule(module, std::make_unique<WorkerFleet>(workers), std::move(spec),
                      std::move(config)) {}
  TrainedModule(const torch::jit::Module& module, std::unique_ptr<WorkerFleet> fleet,
                TrainerSpec spec = TrainedSpec(), ModelConfig config = TrainedConfig(),
                const MakeLink& make_link = nullptr, bool overlap_reduction = true)
      : fleet_(std::move(fleet)), spec_(std::move(spec)), config_(std::move(config)) {
    status_ = Init(module, make_link, overlap_reduction);
  }

  // Returns the error of creating the model.
  const absl::Status& status() const { return status_; }
  DataParallel& operator*() { return *model_; }
  DataParallel* operator->() { return model_.get(); }
  const WorkerFleet& fleet() const { return *fleet_; }
  const TrainerSpec& spec() const { return spec_; }

  // Each operation draws other random numbers.
  Batch BatchOf(std::vector<HostTensor> inputs, const std::optional<at::Tensor>& target,
                Mode mode = Mode::kTrain) {
    Batch batch;
    batch.rows = inputs.back().rows();
    if (target && spec_.loss_mode == LossMode::kModel) {
      inputs.push_back(ToHost(*target, "target"));
    } else if (target) {
      batch.targets.assign(spec_.losses.size(), ToHost(*target, "targets[0]"));
    }
    batch.inputs = std::move(inputs);
    batch.mode = mode;
    batch.seed = MixSeed(spec_.seed, ++operations_);
    return batch;
  }
  Batch BatchOf(const at::Tensor& x, const std::optional<at::Tensor>& target,
                Mode mode = Mode::kTrain) {
    return BatchOf(std::vector<HostTensor>{ToHost(x, "x")}, target, mode);
  }

  absl::StatusOr<OperationResult> ForwardBackward(const at::Tensor& x, const at::Tensor& target) {
    return model_->RunTrainStep(BatchOf(x, target), nullptr);
  }
  absl::StatusOr<OperationResult> Step(const at::Tensor& x, const at::Tensor& target,
                                       const HyperParameters& changes = {}) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<GroupValues> values, schedule_->Next(changes));
    return Advanced(model_->RunTrainStep(BatchOf(x, target), &values));
  }
  absl::StatusOr<OperationResult> Update(const HyperParameters& changes = {}) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<GroupValues> values, schedule_->Next(changes));
    return Advanced(model_->Update(values));
  }
  absl::StatusOr<OperationResult> Forward(const at::Tensor& x, Mode mode, bool keep_graph = false) {
    return model_->Forward(BatchOf(x, std::nullopt, mode), keep_graph);
  }
  absl::StatusOr<EvaluationResult> Evaluate(const at::Tensor& x, const at::Tensor& target) {
    BRAID_ASSIGN_OR_RETURN(Evaluation evaluation,
                           Evaluation::Create({"accuracy"}, /*k=*/1, objective_));
    BRAID_RETURN_IF_ERROR(model_->Evaluate(BatchOf(x, target, Mode::kEval), &evaluation));
    return evaluation.Result();
  }

  // Parameters and buffers by name.
  State state() {
    State tensors;
    const absl::StatusOr<std::vector<StateTensor>> state = model_->State();
    for (const StateTensor& entry : *state) {
      tensors[entry.tensor.name] = View(entry.tensor).clone();
    }
    return tensors;
  }

 private:
  absl::Status Init(const torch::jit::Module& module, const MakeLink& make_link,
                    bool overlap_reduction) {
    BRAID_ASSIGN_OR_RETURN(objective_, Objective::Create(&spec_, config_));
    const ReplicaSet served(fleet_->workers(),
                            MakeReplicas(module, config_, fleet_->workers().size()));
    BRAID_ASSIGN_OR_RETURN(Placement placement, Place(served, &spec_));
    for (PlacedStage& stage : placement.stages) {
      stage.communicator = make_link ? make_link(stage.replicas.workers()) : nullptr;
    }
    placement.overlap_reduction = overlap_reduction;
    BRAID_ASSIGN_OR_RETURN(model_,
                           DataParallel::Create(config_, spec_, objective_, std::move(placement)));
    BRAID_ASSIGN_OR_RETURN(schedule_,
                           Schedule::Create(spec_.schedule, spec_.optimizer, model_->groups()));
    return absl::OkStatus();
  }
  absl::StatusOr<OperationResult> Advanced(absl::StatusOr<OperationResult> result) {
    if (result.ok() && result->updated) {
      schedule_->Advance(result->loss, std::nullopt);
    }
    return result;
  }

  const std::unique_ptr<WorkerFleet> fleet_;
  TrainerSpec spec_;
  const ModelConfig config_;
  absl::Status status_;
  std::shared_ptr<const Objective> objective_;
  std::unique_ptr<DataParallel> model_;
  std::optional<Schedule> schedule_;
  uint64_t operations_ = 0;
};

// To within `tolerance`; 0: bit for bit.
inline void ExpectSameState(const State& a, const State& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    EXPECT_TRUE(tolerance == 0 ? at::equal(value, b.at(name))
                               : at::allclose(value, b.at(name), tolerance, tolerance))
        << name << "\n"
        << value << "\n"
        << b.at(name);
  }
}

}  // namespace braid
