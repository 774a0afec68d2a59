// Interface of a device slot: a CPU slot or a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "server/devices/device_spec.h"

namespace c10 {
struct Allocator;
}

namespace braid {

// Identity of a GPU, independent of the order in which CUDA enumerates GPUs.
struct GpuId {
  std::string uuid;    // "GPU-01234567-…"
  std::string pci_id;  // "00000000:3b:00.0"
};

// GPU memory of LibTorch's allocator, in bytes.
struct AllocatorMemory {
  int64_t allocated = 0;  // by tensors
  int64_t cached = 0;     // free, kept for later tensors
};

// Point in the work that was queued on a device, as torch.cuda.Event.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Returns the time since `earlier`, an event of the same device. Both must have completed.
  virtual absl::Duration Since(const DeviceEvent& earlier) const = 0;
  // Blocks the calling thread until the event has completed.
  virtual absl::Status Wait() const = 0;
};

// Owned by a worker and used by its thread. Threads that load models (RunOnLoadThreads()) use
// EnterForLoading() and Synchronize(). The accessors of constants are thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  // Sets the current device and stream of the calling thread for computing.
  virtual void Enter() = 0;
  // Same, with the device's stream for loading: copying a model's parameters and
  // running batches then do not delay each other. Tensors made on this stream may be used on the
  // other one after Synchronize(), and freed once the work that uses them is synchronized.
  virtual void EnterForLoading() { Enter(); }
  // Returns true if another thread may compute on this device while its worker sleeps. That thread
  // must have entered a device of the same kind.
  virtual bool lendable() const { return false; }
  // Waits until the work on the calling thread's stream has ended. Reports errors of the device:
  // INTERNAL, or UNAVAILABLE if the device is lost. Call Worker::Synchronize() instead.
  virtual absl::Status Synchronize() = 0;

  // Records an event after the work that this thread has queued. It has completed after
  // Synchronize(). Returns nullptr for a CPU slot, whose work is not queued.
  virtual std::unique_ptr<DeviceEvent> RecordEvent() { return nullptr; }
  // Makes later work of this thread wait for `event`, which may belong to another device. A GPU's
  // stream waits, not the thread; a CPU slot has no stream, so the thread waits.
  virtual absl::Status WaitEvent(const DeviceEvent& event) { return event.Wait(); }

  // Peak memory of this slot since ResetPeakMemory(), in bytes above the memory in use at that
  // call. On a GPU, this includes its other slots and models that are loaded at the same time.
  virtual void ResetPeakMemory() = 0;
  virtual int64_t PeakMemory() = 0;

  // Device of this slot's tensors.
  virtual c10::Device torch_device() const = 0;
  // Product name of the hardware; empty for a CPU slot.
  virtual std::string hardware() const = 0;
  // Intra-op threads of a thread that computes for the device. On a GPU, for work on the host.
  virtual int threads() const = 0;
  // Empty for a CPU slot.
  virtual GpuId gpu() const { return {}; }
  // Bytes of the whole GPU; nullopt for a CPU slot.
  virtual std::optional<int64_t> total_memory() const { return std::nullopt; }
  // Memory of the whole GPU; nullopt for a CPU slot. Thread-safe.
  virtual std::optional<AllocatorMemory> allocator_memory() const { return std::nullopt; }
  // Number of GPU allocations that failed for lack of memory, of all threads; 0 for a CPU slot.
  // Thread-safe.
  virtual int64_t out_of_memory_errors() const { return 0; }
  // Allocator of page-locked host memory, which the device copies from and to asynchronously;
  // nullptr for a CPU slot. Synchronize() before you free memory that is being copied.
  virtual c10::Allocator* pinned_memory() const { return nullptr; }
};

// Raises `*peak` to the peak memory of the work in its scope. Used on the device's worker.
class PeakMemory {
 public:
  PeakMemory(Device& device, int64_t* peak) : device_(device), peak_(peak) {
    device_.ResetPeakMemory();
  }
  ~PeakMemory() { *peak_ = std::max(*peak_, device_.PeakMemory()); }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

 private:
  Device& device_;
  int64_t* const peak_;
};

// Creates a CPU slot that computes with `threads` intra-op threads.
std::unique_ptr<Device> MakeCpuDevice(int threads);

}  // namespace braid
