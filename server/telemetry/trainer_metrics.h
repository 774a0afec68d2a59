// What is counted of a trainer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/telemetry/metrics.h"

namespace braid {

struct MetricTable;

// Thread-safe. A trainer has one; another of its name, while it goes, shares the series, which go
// with the last of them.
class TrainerMetrics {
 public:
  // `metrics` outlives it.
  TrainerMetrics(Metrics* metrics, absl::string_view trainer);
  ~TrainerMetrics();
  TrainerMetrics(const TrainerMetrics&) = delete;
  TrainerMetrics& operator=(const TrainerMetrics&) = delete;

  // A loss was computed over `rows` rows.
  void RecordLoss(double loss, int64_t rows);
  // An update was made; its operations took `duration`.
  void CountStep(absl::Duration duration);
  // Of the first parameter group.
  void SetLearningRate(double lr);
  void SetGradientNorm(double norm);
  // An operation spent `time` in `phase`.
  void AddPhase(absl::string_view phase, absl::Duration time);
  // 1 - mean / maximum of the workers' time for a batch.
  void RecordImbalance(double ratio);
  // An operation was answered from the record.
  void CountReplay();
  // An operation was left out: something was not finite.
  void CountSkip();
  // Steps waited for `pause` while the state was copied for a checkpoint.
  void RecordCheckpointPause(absl::Duration pause);
  // A checkpoint was written, or failed, after `duration`.
  void RecordCheckpoint(bool written, absl::Duration duration);
  // When the newest checkpoint was written.
  void SetLastCheckpoint(absl::Time written);

 private:
  MetricTable& table_;
  const std::string trainer_;
};

}  // namespace braid
