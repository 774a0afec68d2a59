// A TorchScript module in data-parallel training on CPU workers, and the same in plain LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "server/parallel/host_copy.h"
#include "server/training/data_parallel.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/worker_fleet.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {

// x FP64 [B, 3] to y FP64 [B, 4].
inline ModelConfig TrainedConfig() {
  return {"m",
          /*max_batch_size=*/64,
          absl::ZeroDuration(),
          {{"x", DataType::kFp64, {3}}},
          {{"y", DataType::kFp64, {4}}}};
}

// 3 → 5 → 4 with tanh between, in float64. forward() is for the test to define.
inline torch::jit::Module TwoLayers() {
  const auto weights = [](std::vector<int64_t> shape, double step) {
    const int64_t count = c10::multiply_integers(shape);
    return (at::arange(count, at::kDouble) * step).sin().view(shape).requires_grad_(true);
  };
  torch::jit::Module module = NewModule();
  module.register_parameter("w1", weights({3, 5}, 0.7), /*is_buffer=*/false);
  module.register_parameter("b1", weights({5}, 1.1), /*is_buffer=*/false);
  module.register_parameter("w2", weights({5, 4}, 1.3), /*is_buffer=*/false);
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

class TrainedModule {
 public:
  TrainedModule(const torch::jit::Module& module, int workers,
                const std::string& loss = "cross_entropy")
      : TrainedModule(module, workers, TrainedConfig(), loss) {}
  TrainedModule(const torch::jit::Module& module, int workers, const ModelConfig& config,
                const std::string& loss)
      : fleet_(workers) {
    LossSpec spec;
    spec.name = loss;
    auto created = DataParallel::Create(config, *Loss::Create(spec, config), fleet_.workers(),
                                        MakeReplicas(module, config, static_cast<size_t>(workers)));
    EXPECT_TRUE(created.ok()) << created.status();
    if (created.ok()) {
      model_ = *std::move(created);
    }
  }

  DataParallel& operator*() { return *model_; }
  DataParallel* operator->() { return model_.get(); }
  const WorkerFleet& fleet() const { return fleet_; }

  absl::StatusOr<BatchResult> ForwardBackward(const at::Tensor& x, const at::Tensor& target) {
    return model_->ForwardBackward({ToHost(x, "x")}, {ToHost(target, "target")});
  }
  absl::StatusOr<BatchResult> Forward(const at::Tensor& x, Mode mode) {
    return model_->Forward({ToHost(x, "x")}, {}, mode);
  }
  absl::Status Update(double lr) {
    SgdSpec sgd;
    sgd.lr = lr;
    return model_->Update(sgd);
  }

  // Parameters and buffers by name.
  std::map<std::string, at::Tensor> State() {
    std::map<std::string, at::Tensor> tensors;
    const absl::StatusOr<std::vector<StateTensor>> state = model_->State();
    for (const StateTensor& entry : *state) {
      tensors[entry.tensor.name] = View(entry.tensor).clone();
    }
    return tensors;
  }

 private:
  WorkerFleet fleet_;
  std::unique_ptr<DataParallel> model_;
};

using State = std::map<std::string, at::Tensor>;

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
