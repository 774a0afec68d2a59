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

// Prefixes the field in an error with "options." unless it is a field of CreateTrainerRequest
// itself: the engine does not know where the request holds a part of the specification.
absl::Status QualifyField(const absl::Status& status);

// Returns OK if a trainer with the specification `existing`, which has all defaults, has the
// arguments of the request `asked`: see CreateTrainerRequest.exist_ok. ALREADY_EXISTS with the
// first difference; INVALID_ARGUMENT for an invalid loss.
absl::Status CheckSameArguments(TrainerSpec asked, const TrainerSpec& existing);

// Fills in the specification of a Trainer message, without the modules of losses.
void WriteSpec(const TrainerSpec& spec, braid::v1::Trainer* message);

}  // namespace braid
