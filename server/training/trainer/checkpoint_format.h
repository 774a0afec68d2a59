// A trainer's checkpoint as files:
//
//   base.pt, or base.pt2 and base.safetensors
//                          the model that the trainer started from; the same file in all
//                          checkpoints
//   weights.safetensors    the parameters that train, and the buffers
//   optimizer.safetensors  the optimizer's state and the accumulated gradients
//   reply.safetensors      the outputs of the last operation's recorded reply
//
// and a JSON object with the rest, in which floating-point numbers are hexadecimal to keep every
// bit.
//
// Older servers wrote the model with the trainer's weights, under the names of a version's files
// (model_files.h), and all parameters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/sealed_directory.h"
#include "server/training/step/snapshot.h"
#include "server/training/trainer/operation.h"

namespace braid {

// State of a trainer other than its tensors.
struct TrainerProgress {
  std::string model;
  std::string optimizer;  // its name
  int64_t step = 0;
  int64_t skipped = 0;
  // The last applied operation and its recorded reply.
  int64_t sequence = 0;
  Fingerprint fingerprint;
  OperationResult reply;
  // Empty also if the checkpoint does not have them.
  std::string last_operator;
  std::string history;  // Sequence::history()
  std::vector<double> schedule;
  // The losses since the last update.
  double loss_sum = 0;
  int64_t losses = 0;
  // A graph was kept for a Backward, which a checkpoint does not have.
  bool keeps_graph = false;
};

struct TrainerCheckpoint {
  bool automatic = false;  // CheckpointInfo::automatic; not in the files
  TrainerProgress progress;
  TrainingSnapshot tensors;
};

// Returns the JSON object.
std::string WriteState(const TrainerCheckpoint& checkpoint);
// Returns the files except the base. `checkpoint` outlives them.
std::vector<NewFile> CheckpointFiles(const TrainerCheckpoint& checkpoint);
// Returns a model's files under their names in a checkpoint.
std::vector<NewFile> BaseFiles(std::vector<NewFile> model);

// Reads a checkpoint from the object of WriteState() and the paths of the files. DATA_LOSS naming
// what is missing or invalid.
absl::StatusOr<TrainerCheckpoint> ReadTrainerCheckpoint(
    const std::string& state, const std::map<std::string, std::string>& files);
// Returns the path of the model to which the weights belong. DATA_LOSS if there is none.
absl::StatusOr<std::string> BasePath(const std::map<std::string, std::string>& files);
// Reads only the weights. DATA_LOSS if they are missing or invalid.
absl::StatusOr<std::vector<HostTensor>> ReadWeights(
    const std::map<std::string, std::string>& files);

}  // namespace braid
