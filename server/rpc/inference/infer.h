// An inference request: from the message to the queue, and from the result to the message.
#pragma once

#include <chrono>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inference/grpc_service.pb.h"
#include "server/batching/inference_request.h"
#include "server/batching/request_queue.h"
#include "server/rpc/auth/access.h"
#include "server/serving/served_models.h"
#include "server/shared_memory/shared_regions.h"
#include "server/telemetry/access_log.h"

namespace braid {

// What inference calls share. All of it outlives them.
struct InferContext {
  const ServedModels* models = nullptr;
  const SharedRegions* regions = nullptr;  // null: clients' shared memory is off
  Runner runner = Runner::kWorker;
};

// Without the regions, which are everybody's, if `caller` may not use every model.
InferContext ForCaller(const InferContext& context, const Caller& caller);

// For the access log, of a request that has just come: what it is searched for by, whatever becomes
// of it.
void TellRequest(const inference::ModelInferRequest& request, CallFacts* facts);

// The queue of the model and version that `request` names.
absl::StatusOr<std::shared_ptr<RequestQueue>> FindQueue(
    const ServedModels& models, const inference::ModelInferRequest& request);

// Of a call's deadline as gRPC tells it: InfiniteFuture where the client gave none.
absl::Time DeadlineOf(std::chrono::system_clock::time_point deadline);

// Called once, when the reply is written: by who finishes the request or cancels it. Must not
// block.
using InferDone = absl::AnyInvocable<void(absl::Status)>;

// Checks `request` and queues it in `queue`; it fills `response`, and what was done in `facts`, for
// the access log, before `done`. They live until then. The rows it tells `facts` at once, and
// writes them no more. With Runner::kAnyThread `done` may be called before this returns. Returns
// the request, for Cancel(). An error: nothing was queued, and `done` is not called.
absl::StatusOr<std::shared_ptr<InferenceRequest>> StartInfer(
    const InferContext& context, const std::shared_ptr<RequestQueue>& queue,
    const inference::ModelInferRequest& request, absl::Time deadline,
    inference::ModelInferResponse* response, CallFacts* facts, InferDone done);

}  // namespace braid
