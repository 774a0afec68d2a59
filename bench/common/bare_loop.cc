#include "bench/common/bare_loop.h"

#include <ctime>
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

double ThreadCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

}  // namespace

struct BareLoop::Speed {
  double rows_per_second = 0;
  double cpu_seconds_per_row = 0;

  // Measures `run`, which handles `batch` rows per call, for `time`, after one warm-up call.
  template <typename Run>
  static Speed Measure(int64_t batch, absl::Duration time, Run run) {
    run();
    const double cpu = ThreadCpuSeconds();
    const absl::Time start = absl::Now();
    double rows = 0;
    while (absl::Now() - start < time) {
      run();
      rows += static_cast<double>(batch);
    }
    return {rows / absl::ToDoubleSeconds(absl::Now() - start), (ThreadCpuSeconds() - cpu) / rows};
  }
};

struct BareLoop::Impl {
  std::string path;
  int64_t features;
};

BareLoop::BareLoop(const std::string& path, int64_t features)
    : impl_(std::make_unique<Impl>(Impl{path, features})) {}
BareLoop::~BareLoop() = default;

std::vector<BareLoop::Speed> BareLoop::ForwardLoops(int64_t batch, int threads,
                                                    absl::Duration time) {
  std::vector<Speed> speeds(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (Speed& speed : speeds) {
    running.emplace_back([&speed, this, batch, time] {
      at::set_num_threads(1);
      torch::jit::setGraphExecutorOptimize(false);
      const c10::AutoGradMode no_grad(false);
      torch::jit::Module module = torch::jit::load(impl_->path);
      module.eval();
      const at::Tensor x = at::randn({batch, impl_->features});
      speed = Speed::Measure(batch, time, [&] { module.forward({x}); });
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  return speeds;
}

double BareLoop::Forward(int64_t batch, int threads, absl::Duration time) {
  double sum = 0;
  for (const Speed& speed : ForwardLoops(batch, threads, time)) {
    sum += speed.rows_per_second;
  }
  return sum;
}

double BareLoop::ForwardCpuSeconds(int64_t batch, int threads, absl::Duration time) {
  double sum = 0;
  for (const Speed& speed : ForwardLoops(batch, threads, time)) {
    sum += speed.cpu_seconds_per_row;
  }
  return sum / threads;
}

double BareLoop::Step(int64_t batch, int threads, absl::Duration time) {
  double rate = 0;
  // Runs in a new thread, because the number of intra-op threads is a per-thread setting.
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
    const Speed speed = Speed::Measure(batch, time, [&] {
      optimizer.zero_grad();
      at::cross_entropy_loss(module.forward({x}).toTensor(), y).backward();
      optimizer.step();
    });
    rate = speed.rows_per_second;
  }).join();
  return rate;
}

}  // namespace braid::bench
