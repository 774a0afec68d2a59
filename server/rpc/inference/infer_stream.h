// ModelStreamInfer: requests of one client, several in flight, answered in the order in which they
// came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/inference/infer.h"

namespace braid {

// gRPC calls OnReadDone() and OnWriteDone() from its threads, workers answer. Reads no further
// while many requests, or many bytes of replies, are not written: a client that does not read holds
// no more. Deletes itself when the call is over and no request is left.
class InferStream final : public grpc::ServerBidiReactor<inference::ModelInferRequest,
                                                         inference::ModelStreamInferResponse>,
                          public OpenStream {
 public:
  InferStream(const InferContext& infer, const RpcContext& rpc,
              const grpc::CallbackServerContext* context);
  ~InferStream() override { rpc_.streams->Remove(this); }

  void Leave(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }

 private:
  // A request that was received and whose reply is not written yet.
  struct Pending {
    std::optional<CallRecord> record;  // until it is counted
    std::string model;                 // that the caller may use
    inference::ModelInferRequest request;
    Ticket ticket;
    inference::ModelStreamInferResponse reply;
    size_t bytes = 0;  // of the request, and of the reply once there is one
    absl::Status status;
    CallFacts facts;
    bool answered = false;
    // Counted in the stream; several messages may carry one batch.
    int64_t batch = 0;
    bool more = false;  // of its batch follows
    std::weak_ptr<InferenceRequest> queued;
  };

  // Queues a request that its caller may make.
  absl::Status Submit(const std::shared_ptr<Pending>& pending) ABSL_LOCKS_EXCLUDED(mu_);
  // The model's queue; that of the message before, if this one goes on with its batch.
  absl::StatusOr<std::shared_ptr<RequestQueue>> QueueFor(Pending* pending);
  void Answer(const std::shared_ptr<Pending>& pending, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Reads, writes or ends the call, as far as that can be done now.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A request is an RPC of its own to metrics and access log, whatever becomes of the others.
  void Count(Pending* pending, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The requests that are not answered end with it.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Cancels what still waits, if the call has ended.
  void CancelRest() ABSL_LOCKS_EXCLUDED(mu_);

  // Immutable after construction.
  const InferContext infer_;
  const RpcContext rpc_;
  const absl::Time deadline_;
  const bool errors_end_;  // an error is the call's status, not a reply

  // What keeps the stream alive: gRPC, until OnDone(); each request that is not answered has
  // another.
  std::shared_ptr<InferStream> self_;

  // Touched by OnReadDone() alone, after the constructor; what it tells the access log is as it was
  // then.
  Caller caller_;
  // The same: the batch whose messages are being received.
  std::shared_ptr<RequestQueue> batch_queue_;  // null: the next message begins one
  std::string batch_model_;
  std::string batch_version_;
  int64_t batch_ = 0;

  absl::Mutex mu_;
  CallRecord record_ ABSL_GUARDED_BY(mu_);  // for an error that is no request's
  // In the order of their arrival.
  std::deque<std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Pending> reading_ ABSL_GUARDED_BY(mu_);  // null: no read is under way
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;                  // of all that is pending
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status leaves_ ABSL_GUARDED_BY(mu_);  // an error: with which, once nothing is pending
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool rest_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // The last batch of which a message failed: what follows of it fails too.
  int64_t failed_batch_ ABSL_GUARDED_BY(mu_) = -1;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
