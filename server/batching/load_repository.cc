#include "server/batching/load_repository.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/batching/load_model.h"
#include "server/models/repository.h"
#include "spdlog/spdlog.h"

namespace braid {
namespace {

absl::Status LoadModel(const RepositoryEntry& entry, const ConfigReader& read_config,
                       ServedModels* models) {
  BRAID_RETURN_IF_ERROR(entry.status);
  std::optional<ModelConfig> config;
  if (!entry.config_path.empty()) {
    BRAID_ASSIGN_OR_RETURN(config, read_config(entry.config_path, entry.name));
  }
  BRAID_ASSIGN_OR_RETURN(LoadedModel loaded,
                         LoadModelFile(entry.model_path, entry.name, config, models->workers()));
  models->Serve(std::move(loaded.model), entry.version, std::move(loaded.replicas));
  return absl::OkStatus();
}

std::string Names(const std::vector<TensorSpec>& specs, bool batched) {
  return absl::StrJoin(specs, ", ", [batched](std::string* out, const TensorSpec& spec) {
    std::vector<std::string> dims;
    if (batched && !spec.broadcast) {
      dims.push_back("B");
    }
    for (const int64_t dim : spec.dims) {
      dims.push_back(dim < 0 ? "?" : absl::StrCat(dim));
    }
    absl::StrAppend(out, spec.name, " ", DataTypeName(spec.type), "[", absl::StrJoin(dims, ","),
                    "]");
  });
}

void LogLoaded(const RepositoryEntry& entry, const ServedModels& models, absl::Duration time) {
  const auto queue = models.Find(entry.name, 0);
  const ModelConfig& config = (*queue)->config();
  spdlog::info("model '{}' version {} ready in {}: ({}) -> ({}), batches of up to {}, {} replicas",
               entry.name, entry.version,
               absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1))),
               Names(config.inputs, config.batched()), Names(config.outputs, config.batched()),
               config.max_batch_size, models.workers().size());
}

}  // namespace

absl::Status LoadRepository(const std::string& directory, const ConfigReader& read_config,
                            ServedModels* models) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<RepositoryEntry> entries, ScanRepository(directory));
  if (entries.empty()) {
    spdlog::warn("the model repository '{}' is empty", directory);
  }
  for (const RepositoryEntry& entry : entries) {
    const absl::Time start = absl::Now();
    if (absl::Status status = LoadModel(entry, read_config, models); status.ok()) {
      LogLoaded(entry, *models, absl::Now() - start);
    } else {
      spdlog::error("model '{}' is not served: {}", entry.name, std::string(status.message()));
      models->ServeNot(entry.name, entry.version, status);
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
