// How a configuration's tensors meet those of an exported pair.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"
#include "server/models/pair/pair_manifest.h"

namespace braid {

// By name, NAME__<number> or order.
struct PairBinding {
  std::vector<size_t> inputs;   // for each input of the package the configuration's
  std::vector<size_t> outputs;  // for each output of the configuration the package's
};

// Fills into `config` what the package knows better: sizes that are fixed, the ranges of indices.
// FAILED_PRECONDITION if they do not fit each other.
absl::StatusOr<PairBinding> BindPair(const PairPart& part, ModelConfig* config);

}  // namespace braid
