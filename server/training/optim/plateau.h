// Detects when the loss or a metric stops improving, by the rules of ReduceLROnPlateau.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Thread-compatible. Watches the mean of the losses of each `interval` updates until the client
// sends a metric. From then on it watches metrics only, and forgets the losses.
class Plateau {
 public:
  explicit Plateau(const PlateauScheduleSpec& spec);

  // Records the loss of an update, if known, and its metric, if the client sent one. Returns
  // whether to replace the learning rates by Reduced().
  bool Advance(std::optional<double> loss, std::optional<double> metric);
  double Reduced(double lr) const;

  // Returns the state for a checkpoint. May contain infinities.
  std::vector<double> state() const;
  // Restores a state(). On DATA_LOSS nothing changes.
  absl::Status Load(absl::Span<const double> state);

 private:
  bool Observe(double value);
  bool Better(double value) const;
  void Forget();

  PlateauScheduleSpec spec_;
  double best_ = 0;
  int64_t bad_ = 0;       // consecutive observations without improvement
  int64_t cooldown_ = 0;  // observations still to be ignored
  double sum_ = 0;        // of the interval's losses
  int64_t losses_ = 0;
  bool by_metric_ = false;
};

}  // namespace braid
