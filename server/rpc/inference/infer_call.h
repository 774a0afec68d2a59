// ModelInfer in flight.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/inference/infer.h"

namespace braid {

// A client that cancels, or that is gone, gives its place in the queue back at once.
class InferCall final : public UnaryCall {
 public:
  // Starts the call. gRPC owns the messages until it is over.
  InferCall(const InferContext& infer, const RpcContext& rpc, grpc::CallbackServerContext* context,
            const inference::ModelInferRequest& request, inference::ModelInferResponse* response);

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Start(const InferContext& infer, const RpcContext& rpc,
                     const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response) ABSL_LOCKS_EXCLUDED(mu_);
  void End(const absl::Status& status);

  const absl::Time deadline_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::weak_ptr<InferenceRequest> request_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
