// Copy of a trainer's whole model in host memory, for writing files.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/parallel/replica.h"
#include "server/parallel/replica_set.h"
#include "server/training/trainer/operation.h"

namespace braid {

// Shared by a trainer and the versions that it publishes, until they are written. Thread-safe. Its
// code is that of the version that the trainer started from.
class HostModel {
 public:
  // Copies the primary of `source`. Blocks while a worker copies.
  static absl::StatusOr<std::unique_ptr<HostModel>> CopyOf(const ReplicaSet& source);

  // Calls `use` on the calling thread with a replica that has the weights in `state`, by name. One
  // call at a time. Returns FAILED_PRECONDITION if the names or shapes do not match the model, else
  // the status of `use`, or of CatchTorch() if it throws.
  absl::Status With(const std::vector<StateTensor>& state,
                    absl::FunctionRef<absl::Status(const Replica&)> use) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit HostModel(std::unique_ptr<Replica> replica) : replica_(std::move(replica)) {}

  absl::Mutex mu_;
  const std::unique_ptr<Replica> replica_ ABSL_PT_GUARDED_BY(mu_);
};

}  // namespace braid
