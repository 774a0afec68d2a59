// Evaluate: adds the batches of a stream to one evaluation, one at a time.
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

// One call. gRPC calls the reactions one at a time; the trainer's thread calls Added(). Deletes
// itself when the call is over and no batch is in progress.
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
  // Submits the received batch to the trainer.
  absl::Status Add();
  // Called after a batch was evaluated. Reads the next one.
  void Added(const absl::StatusOr<int64_t>& step) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteResult();
  // Reads the next batch, or ends the call after Leave().
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call, once.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  TrainerRegistry* const trainers_;
  const RpcContext rpc_;
  braid::v1::EvaluateResponse* const response_;

  // gRPC's reference, until OnDone(). A batch in progress holds another.
  std::shared_ptr<EvaluationStream> self_;
  CallRecord record_;
  Ticket ticket_;
  braid::v1::EvaluateRequest request_;
  std::optional<EvaluationRun> run_;  // set by the first message
  int64_t step_ = 0;

  absl::Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // false: a batch is in progress
  // If not OK: ends with this status after the batch in progress.
  absl::Status leave_status_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Caller caller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
