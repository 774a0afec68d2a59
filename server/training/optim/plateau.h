// Notices when training gets no further, by the rules of ReduceLROnPlateau.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Thread-compatible. Looks at the mean of the losses of each `interval` updates, until a metric
// comes: from then on at metrics alone, and what the losses had shown is forgotten.
class Plateau {
 public:
  explicit Plateau(const PlateauScheduleSpec& spec);

  // After an update with this loss, if it is known, and this metric, if the client sent one. True:
  // learning rates become Reduced() now.
  bool Advance(std::optional<double> loss, std::optional<double> metric);
  double Reduced(double lr) const;

  // All that a checkpoint needs. May hold infinities.
  std::vector<double> state() const;
  // DATA_LOSS, changing nothing, if it is none.
  absl::Status Load(absl::Span<const double> state);

 private:
  bool Look(double value);
  bool Better(double value) const;
  void Forget();

  PlateauScheduleSpec spec_;
  double best_ = 0;
  int64_t bad_ = 0;       // looks in a row that were no better
  int64_t cooldown_ = 0;  // looks that do not count yet
  double sum_ = 0;        // of the interval's losses
  int64_t losses_ = 0;
  bool by_metric_ = false;
};

}  // namespace braid
