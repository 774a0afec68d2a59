// Evaluate: batches of the client, added to one evaluation, one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "braid/v1/training.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// gRPC calls its methods one at a time, the trainer's thread answers. Deletes itself when the call
// is over and no batch is under way.
class EvaluationStream final : public grpc::ServerReadReactor<braid::v1::EvaluateRequest>,
                               public OpenStream {
 public:
  EvaluationStream(TrainerRegistry* trainers, const RpcContext& rpc,
                   const grpc::CallbackServerContext& context,
                   braid::v1::EvaluateResponse* response);
  ~EvaluationStream() override { rpc_.streams->Remove(this); }

  void Leave(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }

 private:
  // Hands the batch that was read to the trainer.
  absl::Status Add();
  // The batch has been added: reads the next one.
  void Added(const absl::StatusOr<int64_t>& step) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteResult();
  // Reads the next batch, or ends the call, if it is to leave.
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call, unless it has been.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  TrainerRegistry* const trainers_;
  const RpcContext rpc_;
  braid::v1::EvaluateResponse* const response_;

  // gRPC's hold on the stream, until OnDone(); a batch under way has another.
  std::shared_ptr<EvaluationStream> self_;
  CallRecord record_;
  Ticket ticket_;
  braid::v1::EvaluateRequest request_;
  std::optional<EvaluationRun> run_;  // from the first message on
  int64_t step_ = 0;

  absl::Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // else a batch is under way
  absl::Status leaves_ ABSL_GUARDED_BY(mu_);   // an error: with which, once none is under way
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Caller caller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
