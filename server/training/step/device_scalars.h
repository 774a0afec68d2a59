// Numbers that a device computes during an operation and the host needs: losses, ranges and norms.
#pragma once

#include <functional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "server/devices/staging.h"
#include "server/devices/worker.h"

namespace braid {

// Collects the numbers of one rank, so that one transfer and one wait for the device deliver all of
// them. Numbers in host memory are delivered at once. Thread-compatible: used on the rank's worker.
class DeviceScalars {
 public:
  // `staging`: of the rank's device; outlives the object.
  explicit DeviceScalars(Staging& staging) : staging_(staging) {}

  // Receives a number as float64.
  using OnNumber = std::function<void(double)>;
  using OnRange = std::function<void(double min, double max)>;

  // Delivers `number`, a 0-dim floating-point tensor. Does not wait for the device.
  void Add(const at::Tensor& number, OnNumber on_number);
  // Delivers the smallest and the largest element of `values`; both are NaN if an element is NaN.
  // Requires at least one element. Does not wait for the device.
  void AddRange(const at::Tensor& values, OnRange on_range);

  // Copies the numbers to the host, waits for the device once, and delivers them in the order of
  // the Add calls. Waits even if there are none, so that a device fault is noticed.
  absl::Status Read(Worker& worker);

 private:
  struct Pending {
    at::Tensor number;  // float64
    OnNumber on_number;
  };
  Staging& staging_;
  std::vector<Pending> pending_;
};

}  // namespace braid
