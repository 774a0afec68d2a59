// The model that a trainer started from, to which its weights are added for publishing and writing.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/base/new_file.h"
#include "server/parallel/replica.h"
#include "server/parallel/replica_set.h"
#include "server/training/trainer/operation.h"

namespace braid {

// Immutable and thread-safe.
class HostModel {
 public:
  // Copies the primary of `source` to host memory. On the CPU, shares its parameters' memory.
  // Blocks while a worker copies.
  static absl::StatusOr<std::unique_ptr<HostModel>> CopyOf(const ReplicaSet& source);

  // Returns the files of the model without a trainer's weights.
  std::vector<NewFile> Files() const { return replica_->Files(); }

  // Returns a replica of the whole model on `device` with the values in `state`, by name. Uses the
  // memory of its parameters that are on `device`. Others have the model's values.
  // FAILED_PRECONDITION if shapes do not match the model, else the status of CatchTorch().
  absl::StatusOr<std::unique_ptr<Replica>> With(const std::vector<StateEntry>& state,
                                                c10::Device device) const;
  // Same, in host memory. The replica must not outlive `state`.
  absl::StatusOr<std::unique_ptr<Replica>> With(const std::vector<StateTensor>& state) const;

 private:
  explicit HostModel(std::unique_ptr<const Replica> replica) : replica_(std::move(replica)) {}

  const std::unique_ptr<const Replica> replica_;
};

}  // namespace braid
