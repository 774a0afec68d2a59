#include "server/training/trainer/step_profiler.h"

#include <exception>
#include <fstream>
#include <set>

#include "ATen/Context.h"
#include "server/telemetry/log.h"
#include "torch/csrc/autograd/profiler_kineto.h"
#include "torch/csrc/profiler/api.h"

namespace braid {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

// Operations for warm-up of allocators, caches and the profiler.
constexpr int64_t kWarmUp = 3;

void Start() {
  torch::profiler::impl::ExperimentalConfig all_threads;
  all_threads.profile_all_threads = true;
  const torch::profiler::impl::ProfilerConfig config(
      torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/true,
      /*profile_memory=*/false, /*with_stack=*/false, /*with_flops=*/false, /*with_modules=*/false,
      all_threads);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (at::globalContext().hasCUDA()) {
    activities.insert(ActivityType::CUDA);
  }
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities,
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
}

}  // namespace

StepProfiler::~StepProfiler() {
  const absl::MutexLock lock(&mu_);
  if (recording_) {
    Save();
  }
}

void StepProfiler::Begin() {
  const absl::MutexLock lock(&mu_);
  if (recording_ || done_ != kWarmUp) {
    return;
  }
  try {
    Start();
    recording_ = true;
  } catch (const std::exception& error) {
    Log(LogModule::kTraining).error("--profile: cannot be recorded: {}", error.what());
    done_ = kWarmUp + steps_;
  }
}

void StepProfiler::End() {
  const absl::MutexLock lock(&mu_);
  ++done_;
  if (recording_ && done_ == kWarmUp + steps_) {
    Save();
  }
}

void StepProfiler::Save() {
  recording_ = false;
  try {
    profiler::disableProfiler()->save(path_);
  } catch (const std::exception& error) {
    Log(LogModule::kTraining).error("--profile: cannot write '{}': {}", path_, error.what());
    return;
  }
  // The profiler does not report errors.
  if (!std::ifstream(path_)) {
    Log(LogModule::kTraining).error("--profile: cannot write '{}'", path_);
    return;
  }
  Log(LogModule::kTraining)
      .info("--profile: {} training operations written to '{}'", done_ - kWarmUp, path_);
}

}  // namespace braid
