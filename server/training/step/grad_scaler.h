// Scales the loss so that float16 gradients neither vanish nor overflow, like torch.amp.GradScaler.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Returns INVALID_ARGUMENT naming a field ("grad_scaler.init_scale") that is out of range.
absl::Status CheckGradScaler(const GradScalerSpec& spec);

// Owned by a DataParallel. Thread-compatible.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerSpec& spec);

  // Returns the factor of the loss, by which the gradients are divided before they are used.
  double scale() const { return scale_; }
  // Adjusts the scale after an update. `found_inf`: the update was skipped because scaled gradients
  // overflowed.
  void Update(bool found_inf);

  // Returns the state for a checkpoint.
  std::vector<double> state() const;
  // Restores a state(). On DATA_LOSS nothing changes.
  absl::Status Load(const std::vector<double>& state);

 private:
  GradScalerSpec spec_;
  float scale_;
  int64_t good_ = 0;  // consecutive updates without overflow
};

}  // namespace braid
