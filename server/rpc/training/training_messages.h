// Conversions of operations, results, trainers and checkpoints.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "braid/v1/training.pb.h"
#include "server/storage/checkpoint_store.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/replay_report.h"
#include "server/training/trainer/trainer_history.h"
#include "server/training/trainer_spec.h"

namespace braid {

HyperParameters ReadHyperParameters(const braid::v1::HyperParameters& message);

// Convert a request into an operation with the request's fingerprint. Tensors point into the
// request. INVALID_ARGUMENT, naming the field.
absl::StatusOr<Operation> ReadOperation(const braid::v1::StepRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardBackwardRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::OptimStepRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::BackwardRequest& request);
absl::StatusOr<Operation> ReadOperation(const braid::v1::PublishRequest& request);

// FAILED_PRECONDITION if the trainer belongs to a job: clients may read, but not change it.
absl::Status CheckNotOwnedByJob(absl::string_view trainer);

void WriteTrainer(const TrainerInfo& info, braid::v1::Trainer* message);

// Fill in the reply. with_chunks: include how the batch was split.
void WriteReply(const OperationResult& result, bool with_chunks, braid::v1::StepResponse* reply);
void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::ForwardBackwardResponse* reply);
void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::OptimStepResponse* reply);
void WriteReply(const OperationResult& result, bool with_chunks, braid::v1::ForwardResponse* reply);
void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::BackwardResponse* reply);
void WriteReply(const OperationResult& result, bool with_chunks, braid::v1::PublishResponse* reply);

void WriteCheckpoint(const CheckpointInfo& info, braid::v1::Checkpoint* message);
void WriteRecorded(const RecordedOperation& operation, braid::v1::RecordedOperation* message);
void WriteReport(const ReplayReport& report, braid::v1::ReplayTrainerResponse* message);

}  // namespace braid
