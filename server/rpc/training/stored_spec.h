// A trainer's request as it is kept in the data directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/training/trainer_spec.h"

namespace braid {

// From a serialized CreateTrainerRequest. DATA_LOSS if it is none.
absl::StatusOr<TrainerSpec> ReadStoredSpec(const std::string& request);

}  // namespace braid
