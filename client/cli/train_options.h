// The options of `braid train`, and the trainer that they ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"

namespace braid::cli {

struct TrainOptions {
  // Empty only with `attach`.
  std::string model;
  std::vector<std::string> inputs;
  std::vector<std::string> targets;
  int64_t epochs = 1;
  int64_t batch_size = 64;
  bool drop_last = false;
  bool shuffle = true;
  // Default: the trainer's, whose default is 0.
  std::optional<uint64_t> seed;

  // What is not given is left to the server, whose defaults are PyTorch's.
  std::vector<std::string> losses;
  std::string loss_mode;
  std::string optimizer = "SGD";
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
  std::vector<std::string> groups;
  std::string schedule;
  int64_t warmup = 0;
  std::optional<double> clip_grad_norm;
  std::string precision;
  bool sync_batch_norm = false;
  int64_t micro_batch = 0;
  std::vector<std::string> stages;
  std::string output_device;
  std::vector<std::string> settings;

  std::string trainer;
  std::string attach;
  int64_t checkpoint_every = 0;
  size_t depth = 2;
  bool publish = false;
  bool split = false;
  bool keep_trainer = false;

  // Those that decide what a new trainer is.
  std::vector<const CLI::Option*> creation;
};

// `options` must outlive `app`.
void AddTrainOptions(CLI::App& app, TrainOptions& options);

// INVALID_ARGUMENT for a trainer that is both there and to be made, or neither.
absl::Status CheckAttach(const TrainOptions& options);

// `targets`: their names. INVALID_ARGUMENT if an option does not fit.
absl::StatusOr<v1::CreateTrainerRequest> TrainerRequest(const TrainOptions& options,
                                                        const std::vector<std::string>& targets);

}  // namespace braid::cli
