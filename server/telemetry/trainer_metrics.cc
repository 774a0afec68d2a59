#include "server/telemetry/trainer_metrics.h"

#include "absl/synchronization/mutex.h"
#include "server/telemetry/metric_table.h"

namespace braid {

TrainerMetrics::TrainerMetrics(Metrics* metrics, absl::string_view trainer)
    : table_(*metrics->table_), trainer_(trainer) {
  {
    const absl::MutexLock lock(&table_.mu);
    ++table_.trainers[trainer_];
  }
  // Start at 0, so that rate() sees the first increment.
  for (Counters* counters : {&table_.steps, &table_.training_samples, &table_.replayed,
                             &table_.skipped, &table_.journal_bytes, &table_.journal_errors}) {
    counters->At({trainer_});
  }
  for (const char* outcome : {"written", "failed"}) {
    table_.checkpoints.At({trainer_, outcome});
  }
}

TrainerMetrics::~TrainerMetrics() {
  const absl::MutexLock lock(&table_.mu);
  const auto found = table_.trainers.find(trainer_);
  if (--found->second > 0) {
    return;
  }
  table_.trainers.erase(found);
  const auto drop = [this](auto&... families) { (families.Drop("trainer", trainer_), ...); };
  drop(table_.steps, table_.training_samples, table_.step_duration, table_.phases, table_.loss,
       table_.learning_rate, table_.gradient_norm, table_.replayed, table_.skipped,
       table_.imbalance, table_.checkpoints, table_.checkpoint_duration, table_.checkpoint_pause,
       table_.last_checkpoint, table_.journal_bytes, table_.journal_size, table_.journal_wait,
       table_.journal_errors);
}

void TrainerMetrics::RecordLoss(double loss, int64_t rows) {
  table_.loss.At({trainer_}).Set(loss);
  table_.training_samples.At({trainer_}).Increment(static_cast<double>(rows));
}

void TrainerMetrics::CountStep(absl::Duration duration) {
  table_.steps.At({trainer_}).Increment();
  table_.step_duration.At({trainer_}).Observe(absl::ToDoubleSeconds(duration));
}

void TrainerMetrics::SetLearningRate(absl::string_view group, double lr) {
  table_.learning_rate.At({trainer_, group}).Set(lr);
}

void TrainerMetrics::SetGradientNorm(double norm) { table_.gradient_norm.At({trainer_}).Set(norm); }

void TrainerMetrics::AddPhase(absl::string_view phase, absl::Duration time) {
  table_.phases.At({trainer_, phase}).Increment(absl::ToDoubleSeconds(time));
}

void TrainerMetrics::RecordImbalance(double ratio) {
  table_.imbalance.At({trainer_}).Observe(ratio);
}

void TrainerMetrics::CountReplay() { table_.replayed.At({trainer_}).Increment(); }

void TrainerMetrics::CountSkip() { table_.skipped.At({trainer_}).Increment(); }

void TrainerMetrics::RecordCheckpointPause(absl::Duration pause) {
  table_.checkpoint_pause.At({trainer_}).Observe(absl::ToDoubleSeconds(pause));
}

void TrainerMetrics::RecordCheckpoint(bool written, absl::Duration duration) {
  table_.checkpoints.At({trainer_, written ? "written" : "failed"}).Increment();
  table_.checkpoint_duration.At({trainer_}).Observe(absl::ToDoubleSeconds(duration));
}

void TrainerMetrics::CountJournal(int64_t bytes, int64_t size) {
  table_.journal_bytes.At({trainer_}).Increment(static_cast<double>(bytes));
  table_.journal_size.At({trainer_}).Set(static_cast<double>(size));
}

void TrainerMetrics::RecordJournalWait(bool written, absl::Duration wait) {
  if (written) {
    table_.journal_wait.At({trainer_}).Observe(absl::ToDoubleSeconds(wait));
  } else {
    table_.journal_errors.At({trainer_}).Increment();
  }
}

void TrainerMetrics::SetLastCheckpoint(absl::Time written) {
  table_.last_checkpoint.At({trainer_}).Set(absl::ToDoubleSeconds(written - absl::UnixEpoch()));
}

}  // namespace braid
