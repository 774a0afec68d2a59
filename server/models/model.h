// Interface of a model that has been opened from a file of any format.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/models/model_config.h"
#include "server/parallel/replica.h"

namespace braid {

// Immutable and thread-safe.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // A replica with the file's weights on `device`, in eval mode. Called on a thread that has
  // entered the device, beside its worker (RunOnLoadThreads()); may throw what LibTorch throws.
  virtual absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(c10::Device device) const = 0;
  // True if a forward pass in evaluation mode may change the replica's state.
  virtual bool stateful() const { return false; }
};

}  // namespace braid
