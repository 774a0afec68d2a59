// Evaluate: adds the batches of a stream to one evaluation, one at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.grpc.pb.h"
#include "server/rpc/request_stream.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// One call. A thread of the trainer pool calls OnBatchEvaluated().
class EvaluationStream final : public RequestStream<braid::v1::EvaluateRequest> {
 public:
  EvaluationStream(TrainerRegistry* trainers, const RpcContext& rpc,
                   const grpc::CallbackServerContext& context,
                   braid::v1::EvaluateResponse* response)
      : RequestStream(rpc, context, "Evaluate"), trainers_(trainers), response_(response) {
    Start();
  }

 private:
  void OnRequest() override;
  void OnLast() override;
  // Submits the received batch to the trainer.
  absl::Status Add();
  // Called after a batch was evaluated.
  void OnBatchEvaluated(const absl::StatusOr<int64_t>& step);
  absl::Status WriteResult();

  TrainerRegistry* const trainers_;
  braid::v1::EvaluateResponse* const response_;

  std::optional<EvaluationRun> run_;  // set by the first message
  int64_t step_ = 0;
};

}  // namespace braid
