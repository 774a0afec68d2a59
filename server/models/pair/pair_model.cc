#include "server/models/pair/pair_model.h"

#include <utility>
#include <vector>

#include "server/base/status.h"
#include "server/models/batch_dimension.h"
#include "server/models/pair/pair_binding.h"
#include "server/models/pair/pair_package.h"
#include "server/models/pair/pair_replica.h"

namespace braid {
namespace {

class PairModel final : public Model {
 public:
  PairModel(std::shared_ptr<const PairPackage> package, ModelConfig config, PairBinding binding)
      : package_(std::move(package)),
        config_(std::move(config)),
        graph_config_(std::make_shared<const ModelConfig>(WithBatchFirst(config_))),
        binding_(std::move(binding)) {}

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(c10::Device device) const override {
    return PairReplica::Create(package_, graph_config_, binding_, device);
  }

 private:
  // The graphs move the batch to where the module has it.
  static ModelConfig WithBatchFirst(ModelConfig config) {
    for (std::vector<TensorSpec>* const specs : {&config.inputs, &config.outputs}) {
      for (TensorSpec& spec : *specs) {
        spec.batch_dim = 0;
      }
    }
    return config;
  }

  const std::shared_ptr<const PairPackage> package_;
  const ModelConfig config_;
  const std::shared_ptr<const ModelConfig> graph_config_;  // batch_dim is 0
  const PairBinding binding_;
};

std::vector<TensorSpec> Specs(const std::vector<PairTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const PairTensor& tensor : tensors) {
    TensorSpec spec{tensor.name, tensor.type, {}};
    spec.batch_dim = tensor.batch_dim;
    // A 0-dim output is one number per chunk.
    for (size_t d = 1; d < tensor.shape.size(); ++d) {
      spec.dims.push_back(tensor.shape[d]);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

ModelConfig Derive(const PairStage& whole, const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.max_batch_size = kDefaultMaxBatchSize;
  config.inputs = Specs(whole.inputs);
  config.outputs = Specs(whole.outputs);
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> OpenPair(const std::string& path, const std::string& name,
                                                std::optional<ModelConfig> config,
                                                c10::Device device) {
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const PairPackage> package,
                         PairPackage::Open(path, device));
  const PairStage& whole = package->manifest().stages.front();
  if (!config) {
    config = Derive(whole, name);
  } else if (!config->batched()) {
    // A pair has a batch dimension, so each request is one batch. BindPair() rejects other dims.
    SeparateBatchDim("max_batch_size is 0", &*config);
  }
  BRAID_ASSIGN_OR_RETURN(PairBinding binding, BindPair(whole, &*config));
  return std::make_unique<PairModel>(std::move(package), *std::move(config), std::move(binding));
}

}  // namespace braid
