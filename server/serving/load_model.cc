#include "server/serving/load_model.h"

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/models/archive/model_archive.h"
#include "server/models/inference_only/aoti_package.h"
#include "server/models/inference_only/exported_program.h"
#include "server/models/inference_only/package_model.h"
#include "server/models/input_decoders.h"
#include "server/models/pair/pair_model.h"
#include "server/models/scalar_inputs.h"
#include "server/models/torchscript/torchscript_model.h"
#include "server/serving/place_replicas.h"
#include "server/serving/row_independence.h"
#include "server/serving/warm_up.h"
#include "server/telemetry/log.h"

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
    return OpenPair(path, name, config, device);
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const InferencePackage> package,
                         kind == PackageKind::kExportedProgram ? ExportedProgram::Open(path, device)
                                                               : AotiPackage::Open(path));
  return OpenPackage(std::move(package), name, config, device);
}

absl::StatusOr<std::unique_ptr<Model>> OpenBeside(const ModelFile& file,
                                                  const std::optional<ModelConfig>& config,
                                                  Worker* worker) {
  std::unique_ptr<Model> model;
  BRAID_RETURN_IF_ERROR(RunOnLoadThreads({worker}, [&](size_t) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(model, Open(file.path, file.model, config, worker->torch_device()));
    return CheckScalars(model->config());
  }));
  return model;
}

absl::StatusOr<std::vector<std::unique_ptr<Replica>>> MakeReplicas(
    const Model& model, const std::vector<Worker*>& workers) {
  std::vector<std::unique_ptr<Replica>> replicas(workers.size());
  BRAID_RETURN_IF_ERROR(RunOnLoadThreads(workers, [&](size_t r) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(replicas[r], model.MakeReplica(workers[r]->torch_device()));
    return absl::OkStatus();
  }));
  return replicas;
}

// Records in `config` what `test` found. Requests are merged if rows are proven independent, or if
// the configuration declares batches and neither this test nor an earlier one says otherwise.
void Record(RowTest test, int64_t version, ModelConfig* config) {
  const bool declared = config->batching_declared;
  const bool was_proven = config->row_independence == RowIndependence::kProven;
  if (test.one_number && !declared && test.result == RowIndependence::kProven) {
    test.result = RowIndependence::kDependent;
    test.reason = "an output without dimensions is one number for all rows";
  }
  if (test.narrow_integers && test.result == RowIndependence::kProven) {
    test.result = RowIndependence::kUnproven;
    test.reason =
        "integers without a range were tested with 0 and 1 only: declare "
        "parameters[\"range.<input>\"] in config.pbtxt";
  }
  const bool dependent = test.result == RowIndependence::kDependent;
  const bool merge = test.result == RowIndependence::kProven ||
                     (declared && (dependent ? test.approximate : !was_proven));
  config->row_independence = merge && dependent ? RowIndependence::kUnproven
                             : merge            ? test.result
                                                : RowIndependence::kDependent;
  config->row_independence_reason = test.reason;
  if (test.result != RowIndependence::kProven) {
    Log(LogModule::kModels)
        .warn("model '{}' version {}: {} ({}); {}", config->name, version,
              !dependent         ? "row independence could not be proven"
              : test.approximate ? "rows depend slightly on each other"
                                 : "rows depend on each other",
              test.reason,
              merge ? "merging requests because config.pbtxt declares batches"
                    : "requests are neither merged nor split");
  }
}

absl::Status RefuseDependence(const ModelConfig& config, const RowTest& test) {
  return absl::FailedPreconditionError(absl::StrCat(
      "max_batch_size: ", config.max_batch_size, ", but rows depend on each other: ", test.reason,
      " (set max_batch_size: 0 and put -1 before all dims; to merge anyway, set "
      "parameters[\"row_independence\"] to \"assumed\")"));
}

absl::StatusOr<RowTest> Test(const ModelFile& file, const ModelConfig& config, Worker& worker,
                             Replica& replica, RowTestCache* tests) {
  const absl::StatusOr<std::string> key = RowTestKey(file.path, config, worker.torch_device());
  if (key.ok()) {
    if (const std::optional<RowTest> known = tests->Find(*key)) {
      return *known;
    }
  }
  BRAID_ASSIGN_OR_RETURN(RowTest test, TestRowIndependence(config, worker, replica));
  if (key.ok()) {
    tests->Add(*key, test);
  }
  return test;
}

}  // namespace

bool NeedsRowTest(const ModelConfig& config) {
  return config.batched() && (config.row_independence == RowIndependence::kUnproven ||
                              config.row_independence == RowIndependence::kProven);
}

absl::StatusOr<LoadedVersion> LoadOnEach(const ModelFile& file,
                                         const std::optional<ModelConfig>& config,
                                         const std::vector<Worker*>& workers) {
  BRAID_ASSIGN_OR_RETURN(const auto model, OpenBeside(file, config, workers.front()));
  BRAID_ASSIGN_OR_RETURN(auto replicas, MakeReplicas(*model, workers));
  return LoadedVersion{model->config(), file.version, ReplicaSet(workers, std::move(replicas))};
}

absl::StatusOr<LoadedVersion> LoadVersion(const ModelFile& file,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers,
                                          OnRowDependence on_row_dependence, RowTestCache* tests) {
  std::vector<Worker*> placed = workers;
  if (config) {
    BRAID_ASSIGN_OR_RETURN(placed, PlaceReplicas(config->instance_groups, workers));
  }
  BRAID_ASSIGN_OR_RETURN(const auto model, OpenBeside(file, config, placed.front()));
  ModelConfig settled = model->config();
  BRAID_RETURN_IF_ERROR(MakeDecoders(
      {std::filesystem::path(file.path).parent_path().string(), file.folder}, &settled));
  BRAID_ASSIGN_OR_RETURN(auto replicas, MakeReplicas(*model, placed));
  if (NeedsRowTest(settled)) {
    BRAID_ASSIGN_OR_RETURN(const RowTest test,
                           Test(file, settled, *placed.front(), *replicas.front(), tests));
    if (test.result == RowIndependence::kDependent && !test.approximate &&
        settled.batching_declared && on_row_dependence == OnRowDependence::kReject) {
      return RefuseDependence(settled, test);
    }
    Record(test, file.version, &settled);
    if (model->stateful()) {
      BRAID_ASSIGN_OR_RETURN(auto anew, MakeReplicas(*model, {placed.front()}));
      replicas.front() = std::move(anew.front());
    }
  }
  LoadedVersion loaded{std::move(settled), file.version, ReplicaSet(placed, std::move(replicas))};
  BRAID_RETURN_IF_ERROR(WarmUp(loaded.config, file.folder, loaded.replicas));
  return loaded;
}

absl::StatusOr<ModelConfig> SettlePublished(ModelConfig config, int64_t version,
                                            const ReplicaSet& replicas) {
  config.rows_untested = false;
  if (NeedsRowTest(config)) {
    BRAID_ASSIGN_OR_RETURN(const RowTest test,
                           TestRowIndependence(config, replicas.worker(0), replicas.replica(0)));
    Record(test, version, &config);
  }
  return config;
}

}  // namespace braid
