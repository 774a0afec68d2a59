// Page-locked host memory for the asynchronous copies between the host and one device.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Allocator.h"
#include "server/devices/device.h"

namespace braid {

// Owns the host side of the copies that a batch or a step has in flight. Destroy it only after the
// device has been synchronized. Thread-compatible: used by the worker's thread of the device.
class Staging {
 public:
  // `device` outlives the object.
  explicit Staging(const Device& device)
      : device_(device.torch_device()), memory_(device.pinned_memory()) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  c10::Device device() const { return device_; }
  // Returns false for a CPU slot, which reads host memory itself.
  bool needed() const { return memory_ != nullptr; }

  // Returns an uninitialized, contiguous page-locked tensor. Requires needed().
  at::Tensor Empty(at::IntArrayRef shape, c10::ScalarType type);

  // Begins to copy `host` to the device and returns the tensor there. Does not wait for the copy;
  // `host` may be freed at once. On a CPU slot returns `host` itself.
  at::Tensor Upload(const at::Tensor& host);

 private:
  const c10::Device device_;
  c10::Allocator* const memory_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace braid
