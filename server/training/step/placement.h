// Where a trainer's stages live.
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
  std::unique_ptr<Communicator> communicator;
};

struct Placement {
  std::vector<PlacedStage> stages;
  // Where outputs are gathered and the loss is computed, and the worker that does it.
  Worker* output_worker = nullptr;
  c10::Device output_device = c10::kCPU;
  // Gradients may be summed between GPUs during the backward pass.
  bool overlap_reduction = false;
};

// Copies the parts of `served`, which has a replica on every worker of the server, to the devices
// that `spec` names, and fills what it leaves open. INVALID_ARGUMENT naming "stages[0].path",
// "stages[1].devices[0]" or "output_device"; FAILED_PRECONDITION for a
// model that cannot be trained. Blocks: the workers copy.
absl::StatusOr<Placement> Place(const ReplicaSet& served, TrainerSpec* spec);

// For a trainer that goes on after a restart: a checkpoint goes into any number of replicas, so
// devices that the server has no more are left out, and a stage that had no other is to be on all.
// Returns whether there were any.
bool LeaveOutMissingDevices(const ReplicaSet& served, TrainerSpec* spec);

}  // namespace braid
