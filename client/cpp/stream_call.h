// One call of the gRPC method Stream. Internal.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "braid/v1/training.grpc.pb.h"
#include "client/cpp/operation_log.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace braid::client {

// Sends the delegate's operations and passes it the replies. Owned by a Pipeline. Thread-safe.
//
// Calls the delegate from gRPC's threads and from threads in Pump, possibly with its own lock held.
// So the delegate must not hold a lock of its own while it calls this object.
class StreamCall final : private grpc::ClientBidiReactor<v1::StreamRequest, v1::StreamResponse> {
 public:
  struct Next {
    // Null if there is nothing to send at present.
    OperationLog::Operation operation;
    // No further operations will follow.
    bool end = false;
  };

  class Delegate {
   public:
    virtual ~Delegate() = default;
    // Returns the next operation to send. Must not block.
    virtual Next NextToSend() = 0;
    // Receives the replies, one at a time. An error cancels the call and becomes its status.
    virtual absl::Status OnReply(v1::StreamResponse reply) = 0;
    // Receives the final status. This is the last call; afterwards this object may be destroyed.
    virtual void OnEnd(const absl::Status& status) = 0;
  };

  // `stub` and `delegate` must outlive the call.
  StreamCall(v1::TrainingService::StubInterface& stub, Delegate& delegate);

  // Starts the call. Call once.
  void Start();
  // Sends the delegate's next operation. If a write is running, it is sent after that write.
  void Pump();
  // Ends the call with CANCELLED, unless it has ended.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnWritesDoneDone(bool /*ok*/) override { OnWritten(false); }
  void OnDone(const grpc::Status& status) override;
  void OnWritten(bool can_send_more);

  v1::TrainingService::StubInterface& stub_;
  Delegate& delegate_;
  grpc::ClientContext context_;
  // Used only by reads, which run one at a time.
  v1::StreamResponse reply_;
  absl::Status delegate_error_;

  absl::Mutex mu_;
  // Keeps the operation alive until its write has finished.
  OperationLog::Operation sending_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool writes_done_ ABSL_GUARDED_BY(mu_) = false;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace braid::client
