// Conversions of trainer specifications.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT, naming the field, for an unknown enumerator or a number out of range. The
// engine checks the rest.
absl::StatusOr<TrainerSpec> ReadSpec(const braid::v1::CreateTrainerRequest& request);

// Prefixes the field name in an error with "options.", unless the field belongs to
// CreateTrainerRequest itself. The engine does not know the request's layout.
absl::Status QualifyField(const absl::Status& status);

// Returns OK if `requested`, with defaults filled in, equals `existing`: see
// CreateTrainerRequest.exist_ok. ALREADY_EXISTS, naming the first difference; INVALID_ARGUMENT if a
// loss of `requested` is invalid.
absl::Status CheckSameArguments(TrainerSpec requested, const TrainerSpec& existing);

// Fills in the specification of a Trainer message, without the modules of losses.
void WriteSpec(const TrainerSpec& spec, braid::v1::Trainer* message);

}  // namespace braid
