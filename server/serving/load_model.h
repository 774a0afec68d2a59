// Opens a model file and makes replicas that are ready to be served.
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
  // Completed with properties of the model file.
  ModelConfig config;
  int64_t version = 0;
  ReplicaSet replicas;
  // Origin of a version that a trainer published.
  std::map<std::string, std::string> origin = {};
};

// Location of a version.
struct ModelFile {
  std::string path;
  // The model's folder, with the files of its warm-up requests and tokenizers.
  std::string folder;
  std::string model;
  int64_t version = 0;
};

// Handling of a version whose rows depend on each other although its configuration has a batch
// dimension.
enum class OnRowDependence {
  kReject,    // FAILED_PRECONDITION: the user's configuration declares batches.
  kRunAlone,  // Serves it with one request per batch.
};

// Makes warmed-up replicas on the workers that the configuration chooses. A file named *.pt2 is a
// package of any kind; others are TorchScript modules. Tests a batched version for row
// independence, unless `config` decides it or `tests` has the result. Without `config`, a version
// whose rows depend on each other, or cannot be tested, runs each request alone.
//
// Makes the decoders of the inputs, whose files are in the folder of the version or of the model.
//
// Returns the errors of opening the file, PlaceReplicas(), MakeDecoders(), TestRowIndependence()
// and WarmUp().
// Blocks; the workers run only the test and the warm-up.
absl::StatusOr<LoadedVersion> LoadVersion(const ModelFile& file,
                                          const std::optional<ModelConfig>& config,
                                          const std::vector<Worker*>& workers,
                                          OnRowDependence on_row_dependence, RowTestCache* tests);

// Returns true if requests of a version with `config` are merged only after a test.
bool NeedsRowTest(const ModelConfig& config);

// Tests row independence of a version that a trainer published, and returns its configuration with
// the result. FAILED_PRECONDITION if its outputs contradict `config`. Blocks.
absl::StatusOr<ModelConfig> SettlePublished(ModelConfig config, int64_t version,
                                            const ReplicaSet& replicas);

// Makes a replica on each of `workers`, without test and warm-up.
absl::StatusOr<LoadedVersion> LoadOnEach(const ModelFile& file,
                                         const std::optional<ModelConfig>& config,
                                         const std::vector<Worker*>& workers);

}  // namespace braid
