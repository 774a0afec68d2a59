// Weights, optimizer state and accumulated gradients of a trainer at one moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/base/host_tensor.h"
#include "server/training/step/stage.h"
#include "server/training/trainer/operation.h"

namespace braid {

// In host memory.
struct TrainingSnapshot {
  // The parameters that train, and the buffers. Snapshots of older servers have all parameters.
  std::vector<StateTensor> model;
  // "<parameter>.<state>", as torch.optim names them; absent ones are zero.
  std::vector<HostTensor> optimizer;
  // The trainable parameters by name, and how often each has been updated.
  std::vector<std::string> parameters;
  std::vector<int64_t> updates;
  // "<replica>/<parameter>": of each replica, so that a sum is continued in the same order.
  std::vector<HostTensor> gradients;
  int64_t accumulated = 0;
  int64_t skipped_batches = 0;
  bool overflow = false;
  std::vector<double> grad_scaler;
};

// Appends the weights and the optimizer state of `stage` and the gradients of its first `replicas`
// replicas to `*snapshot`. On the CPU, weights are shared, not copied: call
// Stage::UnshareParameters() before they change. By the thread that runs the operation; blocks
// until the workers are done.
absl::Status SaveStage(Stage& stage, size_t replicas, TrainingSnapshot* snapshot);
// Checks that `snapshot` can be restored into `stage`, whose first parameter is parameter `first`
// of the model: FAILED_PRECONDITION if it is of another model or optimizer. By the primary's
// worker.
absl::Status CheckStage(const Stage& stage, const TrainingSnapshot& snapshot, size_t first);
// Restores the primary's parameters, buffers and optimizer state from a snapshot that has passed
// CheckStage(). By the primary's worker.
absl::Status RestoreStage(Stage& stage, const TrainingSnapshot& snapshot, size_t first);
// Restores the accumulated gradients of replica `r`. By its worker.
void RestoreGradients(Stage& stage, const TrainingSnapshot& snapshot, size_t r);

}  // namespace braid
