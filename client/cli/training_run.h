// The steps of `braid train`: batches of a dataset, streamed to a trainer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "braid/v1/training.pb.h"
#include "client/cli/dataset.h"
#include "client/cli/progress.h"
#include "client/cpp/trainer.h"

namespace braid::cli {

struct TrainingPlan {
  int64_t epochs = 1;
  int64_t batch_size = 1;
  bool drop_last = false;
  bool shuffle = true;
  uint64_t seed = 0;
  // Steps that are on their way at once.
  size_t depth = 2;
  // Ask how the first batch is split, and print it.
  bool report_split = false;
};

// Batches in one epoch.
int64_t StepsPerEpoch(const TrainingPlan& plan, int64_t rows);

// How many batches a trainer has taken that this program's steps alone have trained: those that
// were left out, for their loss or gradient was not finite, are no steps. Publications and other
// operations take none. Where somebody accumulates gradients, this is the number of updates.
int64_t BatchesTaken(const v1::Trainer& trainer);

// Makes the plan's steps but for the first `made` of them, and reports each. OK also when `stop`
// said, before a step, that it is enough. DATA_LOSS if the progress cannot be written.
absl::Status RunSteps(const TrainingPlan& plan, const Dataset& dataset, int64_t made,
                      client::Trainer& trainer, ProgressReporter& progress,
                      absl::FunctionRef<bool()> stop);

}  // namespace braid::cli
