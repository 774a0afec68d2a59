// ModelInfer in flight.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/infer.h"

namespace braid {

// A client that cancels, or that is gone, gives its place in the queue back at once. Deletes itself
// when the call is over and the request answered.
class InferCall final : public grpc::ServerUnaryReactor {
 public:
  // Starts the call. gRPC owns the messages until it is over.
  InferCall(const InferContext& infer, const RpcContext& rpc, grpc::CallbackServerContext* context,
            const inference::ModelInferRequest& request, inference::ModelInferResponse* response);

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }
  // Its reactions are short, and need no thread of their own from gRPC's executor, which would cost
  // a tenth of a small request's time. gRPC's default reactor says the same.
  bool InternalInlineable() override { return true; }

 private:
  absl::Status Start(const InferContext& infer, const RpcContext& rpc,
                     const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response) ABSL_LOCKS_EXCLUDED(mu_);
  void End(const absl::Status& status);

  CallTimer timer_;
  const absl::Time deadline_;
  Ticket ticket_;
  // gRPC's hold on the call, until OnDone(); the queued request has another.
  std::shared_ptr<InferCall> self_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::weak_ptr<InferenceRequest> request_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
