#include "server/rpc/inference/infer_call.h"

#include <utility>

#include "server/base/status.h"
#include "server/rpc/inference/shared_memory.h"

namespace braid {

InferCall::InferCall(const InferContext& infer, const RpcContext& rpc,
                     grpc::CallbackServerContext* context,
                     const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response)
    : UnaryCall(rpc, *context, "ModelInfer"), deadline_(DeadlineOf(context->deadline())) {
  const std::shared_ptr<UnaryCall> held = self();
  if (const absl::Status status = Start(infer, rpc, request, response); !status.ok()) {
    End(status);
  }
}

absl::Status InferCall::Start(const InferContext& infer, const RpcContext& rpc,
                              const inference::ModelInferRequest& request,
                              inference::ModelInferResponse* response) {
  TellRequest(request, &facts());
  BRAID_RETURN_IF_ERROR(Check(request));
  InferContext allowed = ForCaller(infer, caller());
  allowed.runner = Runner::kAnyThread;  // this one waits for nothing else
  const size_t shared = SharedInputBytes(allowed.regions, request);
  BRAID_RETURN_IF_ERROR(TakePlace(rpc, request.ByteSizeLong() + shared));
  BRAID_RETURN_IF_ERROR(CheckSharedInputs(shared, rpc.admission->most_bytes()));
  BRAID_ASSIGN_OR_RETURN(const auto queue, FindQueue(*infer.models, request));
  BRAID_ASSIGN_OR_RETURN(
      const std::shared_ptr<InferenceRequest> queued,
      StartInfer(allowed, queue, request, deadline_, response, &facts(),
                 [this, held = self()](const absl::Status& status) { End(status); }));
  bool cancelled = false;
  {
    const absl::MutexLock lock(&mu_);
    request_ = queued;
    cancelled = cancelled_;
  }
  if (cancelled) {
    queued->Cancel();
  }
  return absl::OkStatus();
}

void InferCall::End(const absl::Status& status) {
  // gRPC cancels calls whose deadline passes.
  const bool late = absl::IsCancelled(status) && absl::Now() >= deadline_;
  Reply(late ? absl::DeadlineExceededError("the deadline passed before the request was answered")
             : status);
}

void InferCall::OnCancel() {
  std::shared_ptr<InferenceRequest> queued;
  {
    const absl::MutexLock lock(&mu_);
    cancelled_ = true;
    queued = request_.lock();
  }
  if (queued != nullptr) {
    queued->Cancel();
  }
}

}  // namespace braid
