// The options of `braid train`, and the trainer that they ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"

namespace braid::cli {

struct TrainOptions {
  std::string model;
  std::vector<std::string> inputs;
  std::string target;
  int64_t epochs = 1;
  int64_t batch_size = 64;
  bool drop_last = false;
  bool shuffle = true;
  uint64_t seed = 0;

  std::string loss = "cross_entropy";
  std::string optimizer = "SGD";
  // What is not given is left to the server, whose defaults are PyTorch's.
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
  bool nesterov = false;
  std::vector<double> betas;
  std::optional<double> eps;

  std::string trainer;
  bool publish = false;
  bool split = false;
  bool keep_trainer = false;
};

// `options` must outlive `app`.
void AddTrainOptions(CLI::App& app, TrainOptions& options);

// `target`: the target's name. INVALID_ARGUMENT if an option is not one of the optimizer chosen.
absl::StatusOr<v1::CreateTrainerRequest> TrainerRequest(const TrainOptions& options,
                                                        const std::string& target);

}  // namespace braid::cli
