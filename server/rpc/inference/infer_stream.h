// ModelStreamInfer: requests of one client, several in flight, with replies in the order of the
// requests.
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

// One stream. gRPC threads call the reactor methods; workers deliver the replies. Stops reading
// while too many requests, or too many bytes, wait to be written, so a client that does not read
// cannot accumulate memory. Thread-safe; deletes itself when the call is over and no request is
// left.
class InferStream final : public grpc::ServerBidiReactor<inference::ModelInferRequest,
                                                         inference::ModelStreamInferResponse>,
                          public OpenStream {
 public:
  InferStream(const InferContext& infer, const RpcContext& rpc,
              const grpc::CallbackServerContext* context);
  ~InferStream() override { rpc_.streams->Remove(this); }

  void BeginClose(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }

 private:
  // A received request whose reply is not written yet.
  struct Pending {
    std::optional<CallRecord> record;  // reset once it is recorded
    std::string model;                 // authorized
    inference::ModelInferRequest request;
    Ticket ticket;
    inference::ModelStreamInferResponse reply;
    size_t bytes = 0;  // of the request, and of the reply once it exists
    absl::Status status;
    CallFacts facts;
    bool done = false;
    // Number of the batch within the stream. Several messages may carry one batch.
    int64_t batch = 0;
    bool more = false;  // another message of the batch follows
    std::shared_ptr<Cancellation> cancellation = std::make_shared<Cancellation>();
  };

  // Admits and queues an authorized request.
  absl::Status Submit(const std::shared_ptr<Pending>& pending) ABSL_LOCKS_EXCLUDED(mu_);
  // Finds the model's queue. A message that continues a batch uses the queue of the one before.
  absl::StatusOr<std::shared_ptr<RequestQueue>> QueueFor(Pending* pending);
  void SetReply(const std::shared_ptr<Pending>& pending, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Starts the next read or write, or ends the call.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records a request as one RPC in the metrics and the access log.
  void Record(Pending* pending, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call, and with it the requests that are not done.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Cancels the remaining requests if the call has ended.
  void CancelRest() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const InferContext infer_;
  const RpcContext rpc_;
  const absl::Time deadline_;
  const bool errors_end_call_;  // an error becomes the status of the call, not a reply

  // gRPC's reference, until OnDone(). Each request that is not done holds another.
  std::shared_ptr<InferStream> self_;

  // After construction, changed only in OnReadDone(). The fields for the access log stay constant.
  Caller caller_;
  // Used only in OnReadDone(): the batch whose messages are being received.
  std::shared_ptr<RequestQueue> batch_queue_;  // null: the next message starts a batch
  std::string batch_model_;
  std::string batch_version_;
  int64_t batch_ = 0;

  absl::Mutex mu_;
  CallRecord record_ ABSL_GUARDED_BY(mu_);  // for errors outside of requests
  // In order of arrival.
  std::deque<std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Pending> reading_ ABSL_GUARDED_BY(mu_);  // null: not reading
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;                  // of all pending requests
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
  // If not OK: stops reading, and ends with this status when pending_ is empty.
  absl::Status close_status_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool rest_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // Last batch with a failed message. Its later messages fail with the same error.
  int64_t failed_batch_ ABSL_GUARDED_BY(mu_) = -1;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
