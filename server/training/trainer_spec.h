// What a trainer is made of, as a client describes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace braid {

enum class Reduction { kMean, kSum };

// What a trainer is asked to minimize, as it came from the client.
struct LossSpec {
  std::string name;    // "cross_entropy", "mse"
  std::string output;  // empty: the model's first
  std::string target;  // empty: "target"
  Reduction reduction = Reduction::kMean;
  std::optional<int64_t> ignore_index;  // cross_entropy; default -100
  double label_smoothing = 0;           // cross_entropy
};

// As torch.optim.SGD.
struct SgdSpec {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// As torch.optim.AdamW.
struct AdamWSpec {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

using OptimizerSpec = std::variant<SgdSpec, AdamWSpec>;

// What one update uses in place of the spec's.
struct HyperParameters {
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
};

struct TrainerSpec {
  std::string name;
  std::string model;
  // 0: the version that is served.
  int64_t base_version = 0;
  LossSpec loss;
  OptimizerSpec optimizer;
  std::string request_id;
};

struct TrainerInfo {
  TrainerSpec spec;  // with all defaults filled in
  std::vector<std::string> devices;
  int64_t step = 0;
  int64_t applied_sequence = 0;
  int64_t durable_sequence = 0;
  int64_t accumulated = 0;
};

}  // namespace braid
