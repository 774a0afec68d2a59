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

struct OpenedModel {
  std::shared_ptr<const Model> model;
  ReplicaSet replicas;
};

absl::StatusOr<OpenedModel> OpenOn(const std::vector<Worker*>& workers, const std::string& path,
                                   const std::string& name,
                                   const std::optional<ModelConfig>& config) {
  std::shared_ptr<const Model> model;
  BRAID_RETURN_IF_ERROR(RunBesideEach({workers.front()}, [&](size_t) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(model, Open(path, name, config, workers.front()->torch_device()));
    return absl::OkStatus();
  }));
  std::vector<std::unique_ptr<Replica>> replicas(workers.size());
  BRAID_RETURN_IF_ERROR(RunBesideEach(workers, [&](size_t r) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(replicas[r], model->MakeReplica(workers[r]->torch_device()));
    return absl::OkStatus();
  }));
  return OpenedModel{std::move(model), ReplicaSet(workers, std::move(replicas))};
}

}  // namespace

absl::StatusOr<LoadedVersion> LoadVersion(const ModelFile& file,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers) {
  std::vector<Worker*> placed = workers;
  if (config) {
    BRAID_ASSIGN_OR_RETURN(placed, PlaceReplicas(config->instance_groups, workers));
  }
  BRAID_ASSIGN_OR_RETURN(OpenedModel opened, OpenOn(placed, file.path, file.model, config));
  BRAID_RETURN_IF_ERROR(WarmUp(opened.model->config(), file.folder, opened.replicas));
  return LoadedVersion{std::move(opened.model), file.version, std::move(opened.replicas)};
}

absl::StatusOr<ReplicaSet> LoadReplicas(const std::string& path, const ModelConfig& config,
                                        const std::vector<Worker*>& workers) {
  BRAID_ASSIGN_OR_RETURN(OpenedModel opened, OpenOn(workers, path, config.name, config));
  return std::move(opened.replicas);
}

}  // namespace braid
