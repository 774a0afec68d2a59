// What the wire says of trainers, between its messages and the engine's.
#pragma once

#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"
#include "server/training/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming a field that is missing or that has no such value; what depends on the
// model is the engine's to check.
absl::StatusOr<TrainerSpec> ReadSpec(const braid::v1::CreateTrainerRequest& request);
HyperParameters ReadHyperParameters(const braid::v1::HyperParameters& message);

// The operation that a request describes, with the fingerprint of all of it but the sequence
// number. Its tensors point into the request.
absl::StatusOr<Operation> ReadOperation(const braid::v1::StepRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardBackwardRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::OptimStepRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::PublishRequest& request);

void WriteTrainer(const TrainerInfo& info, braid::v1::Trainer* message);
void WriteStatus(const OperationResult& result, bool with_chunks,
                 braid::v1::OperationStatus* message);

}  // namespace braid
