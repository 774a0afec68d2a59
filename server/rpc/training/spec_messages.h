// What a trainer is made of, on the wire and in the engine.
#pragma once

#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field for an enumerator that is unknown or a number out of what the
// engine's type can hold; the engine checks the rest.
absl::StatusOr<TrainerSpec> ReadSpec(const braid::v1::CreateTrainerRequest& request);

// The parts of a Trainer message that describe it. Modules of losses are left out.
void WriteSpec(const TrainerSpec& spec, braid::v1::Trainer* message);

}  // namespace braid
