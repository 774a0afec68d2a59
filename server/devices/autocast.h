// Computing in a shorter type than the parameters'.
#pragma once

#include <optional>

#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace braid {

// For its scope, on the calling thread, LibTorch's autocast to `type` for the kind of `device`;
// with nullopt nothing. Restores what was. To be held in the forward pass and the loss alone: the
// backward pass takes the types that they used.
//
// Casts of weights are not cached: the cache is one for all threads, who empty it under each other,
// and what a weight that is used twice gets for a gradient would depend on that.
class AutocastGuard {
 public:
  AutocastGuard(c10::Device device, std::optional<c10::ScalarType> type);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  struct Settings {
    bool enabled;
    c10::ScalarType type;
    bool cache;
  };
  void Apply(const Settings& settings) const;

  const c10::DeviceType kind_;
  std::optional<Settings> outer_;
};

}  // namespace braid
