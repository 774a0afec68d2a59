#include "server/batching/load_model.h"

#include <utility>

#include "absl/strings/match.h"
#include "server/base/status.h"
#include "server/batching/place_replicas.h"
#include "server/batching/warm_up.h"
#include "server/devices/run_on.h"
#include "server/models/aoti_package.h"
#include "server/models/archive_check.h"
#include "server/models/exported_program.h"
#include "server/models/package_model.h"
#include "server/models/pair_model.h"
#include "server/models/scalar_text.h"
#include "server/models/torchscript_model.h"

namespace braid {
namespace {

absl::StatusOr<std::unique_ptr<Model>> Open(const std::string& path, const std::string& name,
                                            const std::optional<ModelConfig>& config,
                                            c10::Device device) {
  if (!absl::EndsWith(path, ".pt2")) {
    return OpenTorchScript(path, name, config);
  }
  BRAID_ASSIGN_OR_RETURN(const PackageKind kind, KindOfPackage(path));
  if (kind == PackageKind::kPair) {
    return OpenPair(path, name, config);
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const InferencePackage> package,
                         kind == PackageKind::kExportedProgram ? ExportedProgram::Open(path)
                                                               : AotiPackage::Open(path));
  return OpenPackage(std::move(package), name, config, device);
}

}  // namespace

absl::StatusOr<LoadedVersion> LoadOnEach(const ModelFile& file,
                                         const std::optional<ModelConfig>& config,
                                         const std::vector<Worker*>& workers) {
  std::unique_ptr<Model> model;
  BRAID_RETURN_IF_ERROR(RunBesideEach({workers.front()}, [&](size_t) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(model,
                           Open(file.path, file.model, config, workers.front()->torch_device()));
    return CheckScalars(model->config());
  }));
  std::vector<std::unique_ptr<Replica>> replicas(workers.size());
  BRAID_RETURN_IF_ERROR(RunBesideEach(workers, [&](size_t r) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(replicas[r], model->MakeReplica(workers[r]->torch_device()));
    return absl::OkStatus();
  }));
  return LoadedVersion{model->config(), file.version, ReplicaSet(workers, std::move(replicas))};
}

absl::StatusOr<LoadedVersion> LoadVersion(const ModelFile& file,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers) {
  std::vector<Worker*> placed = workers;
  if (config) {
    BRAID_ASSIGN_OR_RETURN(placed, PlaceReplicas(config->instance_groups, workers));
  }
  BRAID_ASSIGN_OR_RETURN(LoadedVersion loaded, LoadOnEach(file, config, placed));
  BRAID_RETURN_IF_ERROR(WarmUp(loaded.config, file.folder, loaded.replicas));
  return loaded;
}

}  // namespace braid
