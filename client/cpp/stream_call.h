// One call of the method Stream: what is sent and what is replied. Internal.
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

// Thread-safe. It calls its owner from gRPC's threads, and from those that call Pump, with its lock
// held or not: the owner must not hold a lock of its own while it calls this object.
class StreamCall final : private grpc::ClientBidiReactor<v1::StreamRequest, v1::StreamResponse> {
 public:
  struct Next {
    // Null: nothing for now.
    OperationLog::Operation operation;
    // Nothing will come any more.
    bool end = false;
  };

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual Next NextToSend() = 0;
    // Called for one reply after the other. A status that is not OK ends the call with it.
    virtual absl::Status TakeReply(v1::StreamResponse reply) = 0;
    // The last call of the owner: how it ended.
    virtual void Over(const absl::Status& status) = 0;
  };

  // Both must outlive the call.
  StreamCall(v1::TrainingService::StubInterface& stub, Owner& owner);

  // Once.
  void Start();
  // Sends what the owner has, unless something is being sent; then that comes after it.
  void Pump();
  // Ends it with CANCELLED, unless it has ended.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { Wrote(ok); }
  void OnWritesDoneDone(bool /*ok*/) override { Wrote(false); }
  void OnDone(const grpc::Status& status) override;
  void Wrote(bool go_on);

  v1::TrainingService::StubInterface& stub_;
  Owner& owner_;
  grpc::ClientContext context_;
  // Touched only by the reads, one after the other.
  v1::StreamResponse reply_;
  absl::Status fault_;

  absl::Mutex mu_;
  // What is being sent stays until it is.
  OperationLog::Operation sending_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool writes_done_ ABSL_GUARDED_BY(mu_) = false;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace braid::client
