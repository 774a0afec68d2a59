// Metrics of a trainer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/telemetry/metrics.h"

namespace braid {

struct MetricTable;

// Owned by a trainer. A new trainer shares the series with a trainer of the same name that is being
// deleted; they exist as long as one of them. Thread-safe.
class TrainerMetrics {
 public:
  // `metrics` outlives it.
  TrainerMetrics(Metrics* metrics, absl::string_view trainer);
  ~TrainerMetrics();
  TrainerMetrics(const TrainerMetrics&) = delete;
  TrainerMetrics& operator=(const TrainerMetrics&) = delete;

  // Records a loss over `rows` rows.
  void RecordLoss(double loss, int64_t rows);
  // Counts an update whose operations took `duration`.
  void CountStep(absl::Duration duration);
  // Sets the learning rate of a parameter group; "": of the parameters outside groups.
  void SetLearningRate(absl::string_view group, double lr);
  void SetGradientNorm(double norm);
  // Adds the time of an operation in `phase`.
  void AddPhase(absl::string_view phase, absl::Duration time);
  // `ratio` is 1 - mean / maximum of the workers' times for a batch.
  void RecordImbalance(double ratio);
  // Counts an operation that was answered with its recorded reply.
  void CountReplay();
  // Counts an operation that was skipped because its loss or a gradient was not finite.
  void CountSkip();
  // Records the time that steps waited while the state was copied for a checkpoint.
  void RecordCheckpointPause(absl::Duration pause);
  // Counts a checkpoint that was written, or failed, after `duration`.
  void RecordCheckpoint(bool written, absl::Duration duration);
  // Sets the time when the newest checkpoint was written.
  void SetLastCheckpoint(absl::Time written);
  // Counts bytes that were written to the journal, and sets its size.
  void CountJournal(int64_t bytes, int64_t size);
  // Records that a reply waited for the journal, or failed because it could not be written.
  void RecordJournalWait(bool written, absl::Duration wait);

 private:
  MetricTable& table_;
  const std::string trainer_;
};

}  // namespace braid
