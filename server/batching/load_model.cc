#include "server/batching/load_model.h"

#include "absl/strings/match.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/models/aoti_model.h"
#include "server/models/torchscript_model.h"

namespace braid {
namespace {

absl::StatusOr<std::unique_ptr<Model>> Open(const std::string& path, const std::string& name,
                                            const std::optional<ModelConfig>& config,
                                            c10::Device device) {
  return absl::EndsWith(path, ".pt2") ? OpenAoti(path, name, config, device)
                                      : OpenTorchScript(path, name, config);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModelFile(const std::string& path, const std::string& name,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers) {
  LoadedModel loaded;
  BRAID_RETURN_IF_ERROR(RunOnEach({workers.front()}, Phase::kLoad, [&](size_t) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(loaded.model, Open(path, name, config, workers.front()->torch_device()));
    return absl::OkStatus();
  }));
  loaded.replicas.resize(workers.size());
  BRAID_RETURN_IF_ERROR(RunOnEach(workers, Phase::kLoad, [&](size_t r) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(loaded.replicas[r],
                           loaded.model->MakeReplica(workers[r]->torch_device()));
    return absl::OkStatus();
  }));
  return loaded;
}

}  // namespace braid
