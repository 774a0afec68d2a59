// What train.json says of an exported pair: docs/reference/exported-pair.md has its schema.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/ScalarType.h"
#include "server/base/data_type.h"
#include "server/models/model_config.h"

namespace braid {

// A parameter or buffer, by its name in the module's state_dict.
struct PairEntry {
  std::string name;
  bool is_parameter = false;
  bool trainable = false;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  // The entry that it is the same tensor as; its own index where it is nobody's second name.
  size_t tensor = 0;
};

// An input or output of a part. The first dimension is the batch's; without one an output is one
// number for each chunk.
struct PairTensor {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;  // -1: depends on the number of rows
  std::optional<ValueRange> range = std::nullopt;
};

enum class PairRole {
  kParameter,
  kBuffer,
  kInput,
  kNewBuffer,  // what the forward pass makes of a buffer
  kOutput,
  kSaved,  // what the backward pass needs of the forward pass
  kOutputGradient,
  kParameterGradient,
  kInputGradient,
};

// Returns the role's name in train.json: "parameter_gradient".
absl::string_view PairRoleName(PairRole role);

// An input or output of a graph. `index`: into PairManifest::state for parameters, buffers and
// their gradients, of tied ones the first; into the part's inputs or outputs; or among what the
// forward graph saves.
struct PairSlot {
  PairRole role = PairRole::kInput;
  size_t index = 0;
  // Of a gradient: the outputs whose gradients it depends on.
  std::vector<size_t> depends_on = {};
  // For a gradient: the gradients of a batch's chunks add up to that of the batch.
  bool additive = true;
};

struct PairGraph {
  std::string name;  // in the package
  std::vector<PairSlot> inputs;
  std::vector<PairSlot> outputs;
};

// One precision's graphs of a part.
struct PairProgram {
  // What it was traced under autocast to; nullopt: the model's own.
  std::optional<c10::ScalarType> autocast;
  PairGraph eval;
  // None: nothing of the model is trainable.
  std::optional<PairGraph> forward;
  // None: nothing has a gradient, as in a stage that has no parameters and comes first.
  std::optional<PairGraph> backward;
  size_t saved = 0;  // tensors that the forward graph saves
};

// The whole model, or a submodule that was exported as a stage.
struct PairPart {
  std::string path;  // empty: the whole
  std::vector<PairTensor> inputs;
  std::vector<PairTensor> outputs;
  // Fewer rows cannot be normalized: batch norm.
  int64_t min_training_rows = 1;
  int64_t min_evaluation_rows = 1;
  std::vector<PairProgram> programs;
};

struct PairManifest {
  std::string torch_version;  // PyTorch version of the exporter
  std::string device;         // device type that the graphs run on: "cpu" or "cuda"
  std::vector<PairEntry> state;
  std::vector<std::vector<std::string>> chains;
  std::vector<PairPart> parts;  // the whole model first
};

// What a program that was traced under autocast to `autocast` calls its precision.
absl::string_view PrecisionName(std::optional<c10::ScalarType> autocast);

// FAILED_PRECONDITION that names the field if `text` is not a valid train.json, is of another
// schema than this server's, or contradicts itself.
absl::StatusOr<PairManifest> ParsePairManifest(absl::string_view text);

}  // namespace braid
