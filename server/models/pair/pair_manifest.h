// Content of train.json in an exported pair. Its schema is in docs/reference/exported-pair.md.
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

// Parameter or buffer, with its name in the module's state_dict.
struct PairEntry {
  std::string name;
  bool is_parameter = false;
  bool trainable = false;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  // Index of this entry. Tied entries have the index of the first of them.
  size_t tensor = 0;
};

// Input or output of a part. The first dimension is the batch. A 0-dim output is one number per
// chunk.
struct PairTensor {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;  // -1: the number of rows, or another size that varies
  // Inputs of the whole model: dims of any size. Their index does not count the batch.
  std::vector<VariableDim> variable_dims = {};
  std::optional<ValueRange> range = std::nullopt;
  // Dim of the batch in tensors of clients and of the module. In the graphs it is dim 0.
  uint32_t batch_dim = 0;
};

enum class PairRole {
  kParameter,
  kBuffer,
  kInput,
  kNewBuffer,  // value of a buffer after the forward pass
  kOutput,
  kSaved,  // intermediate tensor that the backward pass needs
  kOutputGradient,
  kParameterGradient,
  kInputGradient,
};

// Returns the role's name in train.json: "parameter_gradient".
absl::string_view PairRoleName(PairRole role);

// Input or output of a graph.
struct PairSlot {
  PairRole role = PairRole::kInput;
  // For parameters, buffers and their gradients: index in PairManifest::state of the first of tied
  // entries. Otherwise index in the part's inputs or outputs, or in the saved tensors.
  size_t index = 0;
  // Gradients: the outputs whose gradients it depends on.
  std::vector<size_t> depends_on = {};
  // Gradients: true if the gradients of a batch's chunks add up to the gradient of the batch.
  bool additive = true;
};

struct PairGraph {
  std::string name;  // in the package
  std::vector<PairSlot> inputs;
  std::vector<PairSlot> outputs;
};

// Graphs of a part in one precision.
struct PairProgram {
  // Autocast type that it was traced with; nullopt: without autocast.
  std::optional<c10::ScalarType> autocast;
  PairGraph eval;
  // nullopt: the model has no trainable parameters.
  std::optional<PairGraph> forward;
  // nullopt: there are no gradients, for example in a first stage without parameters.
  std::optional<PairGraph> backward;
  size_t saved = 0;  // number of tensors that the forward graph saves
};

// The whole model, or a submodule that was exported as a pipeline stage.
struct PairStage {
  std::string path;  // empty: the whole model
  // Training with PairManifest::eval_modules in evaluation mode.
  bool eval_modules = false;
  std::vector<PairTensor> inputs;
  std::vector<PairTensor> outputs;
  // Minimum rows, for example for batch norm in training mode.
  int64_t min_training_rows = 1;
  int64_t min_evaluation_rows = 1;
  std::vector<PairProgram> programs;
};

struct PairManifest {
  std::string torch_version;  // PyTorch version of the exporter
  std::string device;         // device type that the graphs run on: "cpu" or "cuda"
  std::vector<PairEntry> state;
  std::vector<std::string> modules;  // paths of all submodules
  // Paths of the submodules that are in evaluation mode in the parts that say so. Empty: there are
  // no such parts.
  std::vector<std::string> eval_modules;
  std::vector<std::vector<std::string>> chains;  // each: stages that together are the model
  std::vector<PairStage> stages;                 // the whole model first
};

// Returns the name in train.json of the precision of a program that was traced with `autocast`.
absl::string_view PrecisionName(std::optional<c10::ScalarType> autocast);

// Parses train.json. FAILED_PRECONDITION naming the field if `text` is invalid, inconsistent, or
// has an unsupported schema version.
absl::StatusOr<PairManifest> ParsePairManifest(absl::string_view text);

}  // namespace braid
