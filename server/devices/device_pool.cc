#include "server/devices/device_pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <thread>
#include <utility>

#include "server/base/background_thread.h"
#include "server/base/status.h"
#include "server/devices/cuda_backend.h"
#include "server/devices/device.h"
#include "server/devices/host_allocator.h"
#include "server/devices/host_memory.h"
#include "server/devices/run_on.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// Intra-op threads of each worker. CPU slots divide the cores among themselves. GPU slots, which
// only prepare inputs and copy outputs on the host, divide them among all slots.
struct Threads {
  int cpu;
  int cuda;
};

Threads ThreadsFor(const std::vector<DeviceSlot>& slots, int requested) {
  const auto is_cpu = [](const DeviceSlot& slot) { return slot.kind == DeviceKind::kCpu; };
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto share = [cores](ptrdiff_t workers) {
    return std::max(1, cores / std::max(1, static_cast<int>(workers)));
  };
  return {requested > 0 ? requested : share(std::count_if(slots.begin(), slots.end(), is_cpu)),
          share(std::ssize(slots))};
}

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const DeviceSlot& slot, CudaBackend* cuda,
                                                   const Threads& threads) {
  if (slot.kind == DeviceKind::kCpu) {
    return MakeCpuDevice(threads.cpu);
  }
  std::unique_ptr<Device> device;
  BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(device, cuda->MakeDevice(slot.index, threads.cuda));
    return absl::OkStatus();
  }));
  return device;
}

// Linux divides the weight of a thread by 1.25 for each step of its nice value. Jobs get a quarter
// of a core that trainers of clients want, too.
constexpr double kWeightRatio = 1.25;
constexpr int kJobNiceIncrement = 5;
constexpr int kMaxNice = 19;

// Returns by how much to raise the nice value of a thread so that Linux gives it `share` of a core
// that a thread of normal priority wants, too.
int NiceIncrementFor(double share) {
  const double steps = std::log((1 - share) / share) / std::log(kWeightRatio);
  return static_cast<int>(
      std::lround(std::clamp(steps, 0.0, double{kMaxNice - kJobNiceIncrement})));
}

std::unique_ptr<Worker> MakeNiceWorker(const Worker::Options& options, int threads,
                                       int nice_increment) {
  std::unique_ptr<Worker> worker;
  // Threads inherit their priority, the worker's from this one, and its intra-op threads from it.
  std::thread([&] {
    EnterBackground("nice", nice_increment);
    worker = std::make_unique<Worker>(options, MakeCpuDevice(threads));
  }).join();
  return worker;
}

// Returns `own`, with the workers of `shared` where it has none.
std::vector<Worker*> WithShared(const std::vector<std::unique_ptr<Worker>>& own,
                                const std::vector<std::unique_ptr<Worker>>& shared) {
  std::vector<Worker*> workers;
  for (size_t i = 0; i < own.size(); ++i) {
    workers.push_back((own[i] != nullptr ? own[i] : shared[i]).get());
  }
  return workers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DevicePool>> DevicePool::Create(const Options& options) {
  return Create(options, LoadCudaBackend());
}

absl::StatusOr<std::unique_ptr<DevicePool>> DevicePool::Create(
    const Options& options, const absl::StatusOr<CudaBackend*>& cuda) {
  auto pool = std::make_unique<DevicePool>();
  const absl::StatusOr<int> gpus = cuda.ok() ? absl::StatusOr<int>((*cuda)->gpus()) : cuda.status();
  BRAID_ASSIGN_OR_RETURN(pool->slots_, ParseDevices(options.devices, gpus));
  InstallHostAllocator();
  const Threads threads = ThreadsFor(pool->slots_, options.cpu_threads);
  const auto inline_batch = std::make_shared<std::atomic<bool>>(false);
  for (const DeviceSlot& slot : pool->slots_) {
    BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                           MakeDevice(slot, cuda.value_or(nullptr), threads));
    Log(LogModule::kDevices)
        .info("device {}: {}", slot.name,
              slot.kind == DeviceKind::kCpu ? fmt::format("{} intra-op threads", threads.cpu)
                                            : device->hardware());
    const Worker::Options worker{slot.name,       options.training_share, options.clock,
                                 options.metrics, options.on_lost,        inline_batch};
    const bool cpu = slot.kind == DeviceKind::kCpu;
    const int nice_increment = NiceIncrementFor(options.training_share);
    pool->training_workers_.push_back(cpu ? MakeNiceWorker(worker, threads.cpu, nice_increment)
                                          : nullptr);
    pool->background_workers_.push_back(
        cpu ? MakeNiceWorker(worker, threads.cpu, nice_increment + kJobNiceIncrement) : nullptr);
    pool->workers_.push_back(
        std::make_unique<Worker>(worker, std::move(device), pool->training_workers_.back().get()));
  }
  return pool;
}

DevicePool::~DevicePool() {
  for (const auto* workers : {&workers_, &training_workers_, &background_workers_}) {
    for (const std::unique_ptr<Worker>& worker : *workers) {
      if (worker != nullptr) {
        worker->Stop();
      }
    }
  }
}

std::vector<Worker*> DevicePool::workers() const {
  std::vector<Worker*> workers;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    workers.push_back(worker.get());
  }
  return workers;
}

std::vector<Worker*> DevicePool::training_workers() const {
  return WithShared(training_workers_, workers_);
}

std::vector<Worker*> DevicePool::background_workers() const {
  return WithShared(background_workers_, workers_);
}

std::map<std::string, int64_t> DevicePool::memory() const {
  std::map<std::string, int64_t> slots;  // of each device
  for (const auto& worker : workers_) {
    ++slots[worker->torch_device().str()];
  }
  const int64_t host = ReachableHostBytes("/");
  std::map<std::string, int64_t> memory;
  for (const auto& worker : workers_) {
    memory[worker->name()] =
        worker->device().total_memory().value_or(host) / slots[worker->torch_device().str()];
  }
  return memory;
}

std::vector<DeviceSlotView> DevicePool::View() const {
  std::vector<DeviceSlotView> views;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Device& device = workers_[i]->device();
    DeviceSlotView view{slots_[i].name,
                        slots_[i].kind,
                        slots_[i].kind == DeviceKind::kCpu ? device.threads() : 0,
                        device.hardware(),
                        0,
                        {}};
    for (const auto* workers : {&workers_, &training_workers_, &background_workers_}) {
      const Worker* const worker = (*workers)[i].get();
      if (worker == nullptr) {
        continue;
      }
      view.samples += worker->samples();
      for (int p = 0; p < kPhases; ++p) {
        view.busy[static_cast<size_t>(p)] += worker->busy(static_cast<Phase>(p));
      }
    }
    views.push_back(std::move(view));
  }
  return views;
}

GpuMemorySource DevicePool::gpu_memory() {
  const absl::StatusOr<CudaBackend*> cuda = LoadCudaBackend();
  if (!cuda.ok()) {
    return {};
  }
  return {(*cuda)->gpus(), [cuda = *cuda](const std::string& handle, int device) {
            return cuda->OpenGpuMemory(handle, device);
          }};
}

}  // namespace braid
