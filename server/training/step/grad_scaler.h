// Scales the loss so that float16 gradients neither vanish nor overflow, as torch.amp.GradScaler.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field ("grad_scaler.init_scale") that is out of range.
absl::Status CheckGradScaler(const GradScalerSpec& spec);

// Thread-compatible.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerSpec& spec);

  // Multiplies the loss; the gradients are divided by it before they are used.
  double scale() const { return scale_; }
  // After an update, or, with `found_inf`, after one that was skipped since scaled gradients
  // overflowed.
  void Update(bool found_inf);

  // All that a checkpoint needs.
  std::vector<double> state() const;
  // DATA_LOSS, changing nothing, if it is none.
  absl::Status Load(const std::vector<double>& state);

 private:
  GradScalerSpec spec_;
  float scale_;
  int64_t good_ = 0;  // updates in a row
};

}  // namespace braid
