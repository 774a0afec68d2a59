// From a model repository to models that are served.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/batching/served_models.h"
#include "server/models/model_config.h"

namespace braid {

// Loads the newest version of every model in `directory`, with a replica on every worker, and
// serves it. One that fails is listed with the reason, logged, and stops no other. Blocks: the
// workers load. NOT_FOUND if the directory cannot be read.
absl::Status LoadRepository(const std::string& directory, const ConfigReader& read_config,
                            ServedModels* models);

}  // namespace braid
