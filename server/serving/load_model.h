// A model's file as replicas that are ready to be served.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/replica_set.h"
#include "server/serving/row_test_cache.h"

namespace braid {

// A version that can be served.
struct LoadedVersion {
  // Completed with what the module tells of itself.
  ModelConfig config;
  int64_t version = 0;
  ReplicaSet replicas;
  // Of a version that a trainer published: where it comes from.
  std::map<std::string, std::string> origin = {};
};

// Where a version lies.
struct ModelFile {
  std::string path;
  // The model's, with the files of its warm-up requests.
  std::string folder;
  std::string model;
  int64_t version = 0;
};

// Handling of a version whose rows depend on each other although its configuration has a batch
// dimension.
enum class OnRowDependence {
  kRefuse,    // FAILED_PRECONDITION: the configuration is the user's and says otherwise.
  kRunAlone,  // It is served; every request is a batch of its own.
};

// Replicas on those of `workers` that the configuration chooses, warmed up; of whatever package it
// is if the file's name ends in .pt2, else of a TorchScript module. A batched version is tested for
// row independence, unless `config` settles it or `tests` knows the result. Without `config` a
// version whose rows depend on each other, or could not be tested, runs each request alone.
//
// Errors and `config` are those of what opens it, PlaceReplicas()'s, TestRowIndependence()'s and
// WarmUp()'s. Blocks; uses the workers only to run the test and the warm-up.
absl::StatusOr<LoadedVersion> LoadVersion(const ModelFile& file,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers,
                                          OnRowDependence on_row_dependence, RowTestCache* tests);

// Tests `published`, a version that a trainer made, before its requests may be merged.
absl::Status SettlePublished(LoadedVersion* published);

// Replicas of a file on each of `workers`, neither tested nor warmed up.
absl::StatusOr<LoadedVersion> LoadOnEach(const ModelFile& file,
                                         const std::optional<ModelConfig>& config,
                                         const std::vector<Worker*>& workers);

}  // namespace braid
