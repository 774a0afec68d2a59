// A model's file as replicas on all workers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/worker.h"
#include "server/models/model.h"
#include "server/models/model_config.h"
#include "server/parallel/replica.h"

namespace braid {

struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::vector<std::unique_ptr<Replica>> replicas;  // one a worker
};

// The file `path` of model `name`: an AOTInductor package if it ends in .pt2, else a TorchScript
// module; errors and `config` are OpenAoti()'s or OpenTorchScript()'s. Blocks: the workers load.
absl::StatusOr<LoadedModel> LoadModelFile(const std::string& path, const std::string& name,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers);

}  // namespace braid
