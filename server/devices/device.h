// What differs between a CPU slot and a GPU.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/devices/device_spec.h"

namespace braid {

// Used by its worker's thread alone, but for the accessors of what never changes.
class Device {
 public:
  virtual ~Device() = default;

  // Makes the calling thread the device's: intra-op threads, or current device and stream.
  virtual void Enter() = 0;
  // Waits until all work that this thread gave to the device has ended. A fault of the device shows
  // here: INTERNAL.
  virtual absl::Status Synchronize() = 0;

  // Where this slot's tensors live.
  virtual c10::Device torch_device() const = 0;
  // Product name of the hardware; empty for a CPU slot.
  virtual std::string hardware() const = 0;
  // Intra-op threads; 0 for a GPU.
  virtual int threads() const = 0;
};

// A CPU slot that computes with `threads` intra-op threads.
std::unique_ptr<Device> MakeCpuDevice(int threads);

}  // namespace braid
