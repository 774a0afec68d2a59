// Reads requests that were stored in the data directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

// request: serialized CreateTrainerRequest. DATA_LOSS if it cannot be parsed.
absl::StatusOr<TrainerSpec> ReadStoredSpec(const std::string& request);

// request: serialized request of an operation of `kind`. DATA_LOSS if it cannot be parsed.
absl::StatusOr<Operation> ReadStoredOperation(OperationKind kind, const std::string& request);

}  // namespace braid
