// Placement of a trainer's stages on devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/devices/communicator.h"
#include "server/parallel/replica_set.h"
#include "server/training/trainer_spec.h"

namespace braid {

struct PlacedStage {
  std::string path;
  ReplicaSet replicas;
  // Over the replicas' devices, or nullptr: MakeCommunicator() says which.
  std::shared_ptr<Communicator> communicator;
};

struct Placement {
  std::vector<PlacedStage> stages;
  // Worker and device that gather the outputs and compute the loss.
  Worker* output_worker = nullptr;
  c10::Device output_device = c10::kCPU;
  // Gradients may be summed between GPUs during the backward pass.
  bool overlap_reduction = false;
};

// Makes replicas of the stages of `served`, which has a replica on every worker of the server, on
// the devices that `spec` names, and fills in the defaults of `*spec`. The replicas share their
// parameters with `served`. Blocks while the workers make them. The trainer's steps run on those
// workers, or on the workers of the same names in `steps_on`, unless it is empty. INVALID_ARGUMENT
// naming "stages[0].path", "stages[1].devices[0]" or "output_device"; FAILED_PRECONDITION for a
// model that cannot be trained.
absl::StatusOr<Placement> Place(const ReplicaSet& served, TrainerSpec* spec,
                                const std::vector<Worker*>& steps_on = {});

// Removes the devices that the server does not have from `*spec`, for a trainer that is restored
// after a restart: a checkpoint can be restored into any number of replicas. A stage without
// devices is placed on all. Returns whether a device was missing.
bool RemoveMissingDevices(const ReplicaSet& served, TrainerSpec* spec);

}  // namespace braid
