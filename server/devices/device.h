// What differs between a CPU slot and a GPU.
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

// A GPU, as the driver names it whatever order a program counts the GPUs in.
struct GpuId {
  std::string uuid;    // "GPU-01234567-…"
  std::string pci_id;  // "00000000:3b:00.0"
};

// What LibTorch's allocator has of a GPU's memory, in bytes.
struct AllocatorMemory {
  int64_t used = 0;  // by tensors
  int64_t kept = 0;  // for the next ones
};

// A moment in the work of a device.
class Moment {
 public:
  virtual ~Moment() = default;
  // Time from `earlier`, of the same device, once both have passed.
  virtual absl::Duration Since(const Moment& earlier) const = 0;
  // Blocks the calling thread until the moment has passed.
  virtual absl::Status Wait() const = 0;
};

// Used by its worker's thread. Threads beside it (Worker::Enter()) use Enter() and Synchronize(),
// at any time, and every thread the accessors of what never changes.
class Device {
 public:
  virtual ~Device() = default;

  // Makes the calling thread the device's: current device and stream.
  virtual void Enter() = 0;
  // Whether any thread that has entered it may use it as its own thread does, while that one does
  // not; whoever has entered one such device has entered all.
  virtual bool lendable() const { return false; }
  // Waits until all work that this thread gave to the device has ended. A fault of the device shows
  // here: INTERNAL, or UNAVAILABLE if nothing will run on it any more. Called through its worker.
  virtual absl::Status Synchronize() = 0;

  // The moment when the device has done all that this thread has given it until now. It has passed
  // after Synchronize(). nullptr for a CPU slot, whose work is done when the thread goes on.
  virtual std::unique_ptr<Moment> Mark() { return nullptr; }
  // Makes the work that this thread gives to the device from now on begin after `moment` of another
  // device. A GPU's stream waits, not the thread; a CPU slot has no stream, so the thread waits.
  virtual absl::Status WaitFor(const Moment& moment) { return moment.Wait(); }

  // The most memory that this slot's work has held at once since ResetPeakMemory(), beyond what it
  // held then, in bytes. On a GPU: of all its slots together, and of what is loaded meanwhile.
  virtual void ResetPeakMemory() = 0;
  virtual int64_t PeakMemory() = 0;

  // Where this slot's tensors live.
  virtual c10::Device torch_device() const = 0;
  // Product name of the hardware; empty for a CPU slot.
  virtual std::string hardware() const = 0;
  // Intra-op threads of a thread that computes for it: on a GPU, for what is done on the host.
  virtual int threads() const = 0;
  // Which GPU it is; empty for a CPU slot.
  virtual GpuId gpu() const { return {}; }
  // Of the whole GPU, by any thread; nullopt for a CPU slot.
  virtual std::optional<AllocatorMemory> allocator_memory() const { return std::nullopt; }
  // Allocations that LibTorch has refused for want of the device's own memory, by any thread; 0 for
  // a CPU slot.
  virtual int64_t out_of_memory_errors() const { return 0; }
  // Allocates host memory that the device copies from and to by itself; nullptr for a CPU slot.
  // What has it copied synchronizes before it frees the memory.
  virtual c10::Allocator* pinned_memory() const { return nullptr; }
};

// For its scope, on the device's worker: raises `*peak` to what the work takes at most.
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

// A CPU slot that computes with `threads` intra-op threads.
std::unique_ptr<Device> MakeCpuDevice(int threads);

}  // namespace braid
