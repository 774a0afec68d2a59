#include "bench/bare_loop.h"

#include <atomic>
#include <thread>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/time/clock.h"
#include "c10/core/GradMode.h"
#include "torch/csrc/jit/api/module.h"
#include "torch/csrc/jit/runtime/graph_executor.h"
#include "torch/csrc/jit/serialization/import.h"
#include "torch/optim/sgd.h"

namespace braid::bench {
namespace {

constexpr int64_t kClasses = 10;

// Rows/s of `run`, which handles `batch` rows a call, over `time`, after one call that does not
// count.
template <typename Run>
double RowsPerSecond(int64_t batch, absl::Duration time, Run run) {
  run();
  const absl::Time start = absl::Now();
  int64_t rows = 0;
  while (absl::Now() - start < time) {
    run();
    rows += batch;
  }
  return static_cast<double>(rows) / absl::ToDoubleSeconds(absl::Now() - start);
}

}  // namespace

struct BareLoop::Impl {
  std::string path;
  int64_t features;
};

BareLoop::BareLoop(const std::string& path, int64_t features)
    : impl_(std::make_unique<Impl>(Impl{path, features})) {}
BareLoop::~BareLoop() = default;

double BareLoop::Forward(int64_t batch, int threads, absl::Duration time) {
  std::vector<double> rates(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (double& rate : rates) {
    running.emplace_back([&rate, this, batch, time] {
      at::set_num_threads(1);
      torch::jit::setGraphExecutorOptimize(false);
      const c10::AutoGradMode no_grad(false);
      torch::jit::Module module = torch::jit::load(impl_->path);
      module.eval();
      const at::Tensor x = at::randn({batch, impl_->features});
      rate = RowsPerSecond(batch, time, [&] { module.forward({x}); });
    });
  }
  double sum = 0;
  for (size_t t = 0; t < running.size(); ++t) {
    running[t].join();
    sum += rates[t];
  }
  return sum;
}

double BareLoop::Step(int64_t batch, int threads, absl::Duration time) {
  double rate = 0;
  // A thread of its own: the number of intra-op threads is a thread's.
  std::thread([&] {
    at::set_num_threads(threads);
    torch::jit::setGraphExecutorOptimize(false);
    torch::jit::Module module = torch::jit::load(impl_->path);
    module.train();
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : module.parameters()) {
      parameters.push_back(parameter);
    }
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
    const at::Tensor x = at::randn({batch, impl_->features});
    const at::Tensor y = at::randint(kClasses, {batch}, at::kLong);
    rate = RowsPerSecond(batch, time, [&] {
      optimizer.zero_grad();
      at::cross_entropy_loss(module.forward({x}).toTensor(), y).backward();
      optimizer.step();
    });
  }).join();
  return rate;
}

}  // namespace braid::bench
