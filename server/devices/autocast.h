// Computing in a shorter dtype than that of the parameters.
#pragma once

#include <optional>

#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace braid {

// Enables LibTorch's autocast to `type` for the kind of `device` on the calling thread in a scope;
// does nothing for nullopt. Use it for the forward pass and the loss only: the backward pass uses
// the dtypes of the forward pass.
//
// Casts of weights are not cached. LibTorch has one cache for all threads, which each of them may
// clear, and the gradients of weights that are used twice would depend on that.
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
