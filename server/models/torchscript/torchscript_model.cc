#include "server/models/torchscript/torchscript_model.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/archive/model_archive.h"
#include "server/models/torchscript/argument_plan.h"
#include "server/models/torchscript/derive_config.h"
#include "server/models/torchscript/embeddings.h"
#include "server/models/torchscript/module_state.h"
#include "server/models/torchscript/torchscript_replica.h"
#include "server/models/training_mode.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

// Loads the file. Errors quote LibTorch: the file's content is the user's.
absl::StatusOr<torch::jit::Module> LoadModule(const std::string& path, c10::Device device) {
  try {
    return torch::jit::load(path, device, /*load_debug_files=*/false);
  } catch (const std::exception& error) {
    const absl::string_view first_line = FirstLine(error.what());
    return absl::FailedPreconditionError(
        absl::StrCat("model.pt cannot be loaded as TorchScript: ", first_line));
  }
}

// Adds the scalar arguments of forward() to `config`, which lists only the tensors.
absl::Status AddScalars(const c10::FunctionSchema& schema, ModelConfig* config) {
  for (TensorSpec& scalar : ScalarArguments(schema)) {
    const auto known =
        std::find_if(config->inputs.begin(), config->inputs.end(),
                     [&scalar](const TensorSpec& input) { return input.name == scalar.name; });
    if (known == config->inputs.end()) {
      config->inputs.push_back(std::move(scalar));
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat("input '", scalar.name, "' is a number in ", CallText(schema),
                       " (remove it from config.pbtxt; requests pass it as a parameter)"));
    }
  }
  return absl::OkStatus();
}

class TorchScriptModel final : public Model {
 public:
  TorchScriptModel(std::string path, ModelConfig config, bool stateful)
      : path_(std::move(path)), config_(std::move(config)), stateful_(stateful) {}

  const ModelConfig& config() const override { return config_; }
  bool stateful() const override { return stateful_; }

  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(c10::Device device) const override {
    BRAID_ASSIGN_OR_RETURN(torch::jit::Module module, LoadModule(path_, device));
    return TorchScriptReplica::Create(std::move(module), config_.inputs, config_.outputs,
                                      stateful_);
  }

 private:
  const std::string path_;
  const ModelConfig config_;
  const bool stateful_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> OpenTorchScript(const std::string& path,
                                                       const std::string& name,
                                                       std::optional<ModelConfig> config) {
  // Reads the whole file, so it runs once and not for each replica.
  BRAID_RETURN_IF_ERROR(CheckTorchScriptArchive(path));
  BRAID_ASSIGN_OR_RETURN(torch::jit::Module module, LoadModule(path, c10::kCPU));
  if (!module.find_method("forward")) {
    return absl::FailedPreconditionError("the module in model.pt has no forward method");
  }
  module.eval();
  const auto& schema = module.get_method("forward").function().getSchema();
  if (!config) {
    BRAID_ASSIGN_OR_RETURN(config, DeriveConfig(module, name));
  } else {
    BRAID_RETURN_IF_ERROR(AddScalars(schema, &*config));
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<ArgumentPlan> arguments,
                         PlanArguments(config->inputs, schema));
  FindEmbeddingRanges(module, arguments, &config->inputs);
  WarnAboutTrainingOperators(path, TrainingOperators(module));
  return std::make_unique<TorchScriptModel>(path, *std::move(config), MayChangeStateInEval(module));
}

}  // namespace braid
