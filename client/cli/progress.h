// What `braid train` prints while it trains.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace braid::cli {

struct Progress {
  // Counted from 1.
  int64_t epoch = 1;
  int64_t epochs = 1;
  // Steps done in this epoch, of how many.
  int64_t step = 0;
  int64_t steps = 0;
  // Smoothed.
  double loss = 0;
  double samples_per_second = 0;
};

// "epoch 1/5 [=====>    ]  52/100  loss 0.4321  1234 samples/s" in at most `width` columns: first
// the bar shrinks, then it goes, then the text is cut.
std::string FormatBar(const Progress& progress, int width);
// "epoch 1/5  step  52/100  loss 0.4321  1234 samples/s".
std::string FormatLine(const Progress& progress);
// Four significant digits or so: "0.4321", "12.34", "1.234e-06", "nan".
std::string FormatLoss(double loss);
// "1234", below 10 "5.6".
std::string FormatRate(double samples_per_second);

// Thread-compatible. Time comes in with each call.
class ProgressReporter {
 public:
  enum class Style {
    // A terminal: a bar, redrawn in place at most ten times a second; a line for each epoch.
    kBar,
    // A pipe or a file: a line at most once a second, and one for each epoch.
    kLines,
    // A JSON object for each step and each epoch.
    kJson,
  };

  // `out` must outlive this object. `epochs` and `steps` (in one epoch) are at least 1; `width` is
  // the terminal's, in columns, for kBar.
  ProgressReporter(std::ostream& out, Style style, int64_t epochs, int64_t steps, int width,
                   absl::Time start);

  // So many steps of the first epochs were made before.
  void StartAfter(int64_t steps);
  // A step of `rows` rows ended with this loss, which is their mean; none: it is not known, and
  // left out. The last of an epoch's steps ends the epoch.
  void Step(std::optional<double> loss, int64_t rows, absl::Time now);
  // An object of its own in kJson (`event` must be one), otherwise this line.
  void Message(const std::string& line, const nlohmann::ordered_json& event);
  // Clears the bar, if one is drawn.
  void Clear();

  // Whether all of it could be written.
  bool ok() const { return !out_.fail(); }
  // Not counting those of StartAfter.
  int64_t total_steps() const { return total_steps_; }
  int64_t total_samples() const { return total_samples_; }
  // Of the last epoch that ended; not a number where no loss was known; 0 before.
  double mean_loss() const { return mean_loss_; }

 private:
  void Draw(std::optional<double> loss, absl::Time now);
  void EndEpoch(absl::Time now);
  void Emit(const nlohmann::ordered_json& event);

  std::ostream& out_;
  const Style style_;
  const int width_;
  Progress progress_;
  bool drawn_ = false;
  absl::Time last_draw_;
  absl::Time epoch_start_;
  int64_t epoch_samples_ = 0;
  // Over the rows whose loss is known.
  double epoch_loss_sum_ = 0;
  int64_t epoch_loss_rows_ = 0;
  // The exponential average of the losses before its bias towards 0 is corrected, and the
  // correction.
  double average_ = 0;
  double average_weight_ = 0;
  double mean_loss_ = 0;
  int64_t total_steps_ = 0;
  int64_t total_samples_ = 0;
};

}  // namespace braid::cli
