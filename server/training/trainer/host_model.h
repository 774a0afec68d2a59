// The whole model that a trainer trains, in host memory: its code, with the weights of the moment.
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

// Thread-safe. Its code is that of the version which the trainer began from, whatever the model
// serves meanwhile.
class HostModel {
 public:
  // A copy of `source`'s. Blocks: a worker copies.
  static absl::StatusOr<std::unique_ptr<HostModel>> CopyOf(const ReplicaSet& source);

  // Calls `use` with a replica that holds the weights in `state`, by name, on the calling thread;
  // one call at a time. FAILED_PRECONDITION if the model has others, what `use` returns, and what
  // CatchTorch() makes of what it throws.
  absl::Status With(const std::vector<StateTensor>& state,
                    absl::FunctionRef<absl::Status(const Replica&)> use) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit HostModel(std::unique_ptr<Replica> replica) : replica_(std::move(replica)) {}

  absl::Mutex mu_;
  const std::unique_ptr<Replica> replica_ ABSL_PT_GUARDED_BY(mu_);
};

}  // namespace braid
