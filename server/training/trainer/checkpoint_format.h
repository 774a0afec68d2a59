// A trainer's checkpoint as files:
//
//   model.pt               the model with the trainer's weights, for torch.jit.load
//   weights.safetensors    parameters and buffers
//   optimizer.safetensors  the optimizer's state, and the gradients that wait for an update
//   reply.safetensors      the outputs of the last operation's recorded reply
//
// and a JSON object with the rest. Floating-point numbers are there in hexadecimal, which keeps
// every bit.
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

// What a trainer is besides its tensors.
struct TrainerProgress {
  std::string model;
  std::string optimizer;  // its name
  int64_t step = 0;
  int64_t skipped = 0;
  // The operation applied last, and its recorded reply.
  int64_t sequence = 0;
  Fingerprint fingerprint;
  OperationResult reply;
  std::string last_operator;  // empty also where none was kept
  std::vector<double> schedule;
  // The losses since the last update.
  double loss_sum = 0;
  int64_t losses = 0;
};

struct TrainerCheckpoint {
  TrainerProgress progress;
  TrainingSnapshot tensors;
};

// The JSON object.
std::string WriteState(const TrainerCheckpoint& checkpoint);
// The files but model.pt. `checkpoint` outlives them.
std::vector<NewFile> CheckpointFiles(const TrainerCheckpoint& checkpoint);

// From WriteState()'s object and the paths of the files. DATA_LOSS saying what is missing or no
// sense.
absl::StatusOr<TrainerCheckpoint> ReadTrainerCheckpoint(
    const std::string& state, const std::map<std::string, std::string>& files);

}  // namespace braid
