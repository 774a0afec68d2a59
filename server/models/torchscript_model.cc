#include "server/models/torchscript_model.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/status.h"
#include "server/models/derive_config.h"
#include "server/models/torchscript_io.h"
#include "server/models/torchscript_replica.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

// What the file holds is anybody's guess, so what LibTorch says of it is the user's to know.
absl::StatusOr<torch::jit::Module> LoadModule(const std::string& path, c10::Device device) {
  try {
    return torch::jit::load(path, device, /*load_debug_files=*/false);
  } catch (const std::exception& error) {
    const absl::string_view first_line = *absl::StrSplit(error.what(), '\n').begin();
    return absl::FailedPreconditionError(
        absl::StrCat("model.pt cannot be loaded as TorchScript: ", first_line));
  }
}

class TorchScriptModel final : public Model {
 public:
  TorchScriptModel(std::string path, ModelConfig config)
      : path_(std::move(path)), config_(std::move(config)) {}

  const ModelConfig& config() const override { return config_; }

  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(c10::Device device) const override {
    BRAID_ASSIGN_OR_RETURN(torch::jit::Module module, LoadModule(path_, device));
    return TorchScriptReplica::Create(std::move(module), config_.inputs, config_.outputs);
  }

 private:
  const std::string path_;
  const ModelConfig config_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> OpenTorchScript(const std::string& path,
                                                       const std::string& name,
                                                       std::optional<ModelConfig> config) {
  BRAID_ASSIGN_OR_RETURN(torch::jit::Module module, LoadModule(path, c10::kCPU));
  if (!module.find_method("forward")) {
    return absl::FailedPreconditionError("the module in model.pt has no forward method");
  }
  module.eval();
  if (!config) {
    BRAID_ASSIGN_OR_RETURN(config, DeriveConfig(module, name));
  }
  const auto& schema = module.get_method("forward").function().getSchema();
  BRAID_RETURN_IF_ERROR(BindInputs(config->inputs, schema).status());
  return std::make_unique<TorchScriptModel>(path, *std::move(config));
}

}  // namespace braid
