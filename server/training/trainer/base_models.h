// Models that trainers started from, read from their checkpoints.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/batching/batch_queue.h"
#include "server/serving/load_model.h"

namespace braid {

// Keeps no model, but returns one that is still used instead of reading it again. Trainers that
// started from the same files so share its code and its frozen weights. Thread-safe.
class BaseModels {
 public:
  // Returns the model in the files of a checkpoint (LoadedCheckpoint::files), on the workers of
  // `served`. DATA_LOSS if there is no model; the errors of LoadOnEach(). Blocks.
  absl::StatusOr<std::shared_ptr<const LoadedVersion>> Load(
      const std::map<std::string, std::string>& files, const BatchQueue& served)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  // By the identity of the files.
  std::map<std::string, std::weak_ptr<const LoadedVersion>> used_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
