// Reads a CreateTrainerRequest stored in the data directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/training/trainer_spec.h"

namespace braid {

// request: serialized CreateTrainerRequest. DATA_LOSS if it cannot be parsed.
absl::StatusOr<TrainerSpec> ReadStoredSpec(const std::string& request);

}  // namespace braid
