// Binds the tensors of a configuration to those of an exported pair.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"
#include "server/models/pair/pair_manifest.h"

namespace braid {

// Tensors are matched by name, NAME__<number> or position.
struct PairBinding {
  std::vector<size_t> inputs;   // index in the configuration of each input of the package
  std::vector<size_t> outputs;  // index in the package of each output of the configuration
};

// Binds `config` to the whole model, `part`, and fills in the package's ranges of indices and
// variable dims. FAILED_PRECONDITION if they do not match.
absl::StatusOr<PairBinding> BindPair(const PairStage& part, ModelConfig* config);

}  // namespace braid
