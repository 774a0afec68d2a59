// From a ModelInferRequest to the model's queue, and from the result to the response.
#pragma once

#include <chrono>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "inference/grpc_service.pb.h"
#include "server/admission/admission.h"
#include "server/batching/inference_request.h"
#include "server/batching/request_queue.h"
#include "server/decode/decode_threads.h"
#include "server/rpc/auth/access.h"
#include "server/serving/served_models.h"
#include "server/shared_memory/shared_regions.h"
#include "server/telemetry/access_log.h"

namespace braid {

// Shared by inference calls; everything it points to outlives them.
struct InferContext {
  const ServedModels* models = nullptr;
  const SharedRegions* regions = nullptr;  // null: shared memory of clients is disabled
  DecodeThreads* decode_threads = nullptr;
  RunMode run_mode = RunMode::kOnWorker;
};

// Returns `context` without the regions if `caller` may not infer with every model: regions are
// shared by all clients.
InferContext ForCaller(const InferContext& context, const Caller& caller);

// Records the request's ID for the access log.
void RecordRequestId(const inference::ModelInferRequest& request, CallFacts* facts);

// Finds the queue of the requested model and version. INVALID_ARGUMENT or NOT_FOUND.
absl::StatusOr<std::shared_ptr<RequestQueue>> FindQueue(
    const ServedModels& models, const inference::ModelInferRequest& request);

// Converts the deadline of a call; InfiniteFuture if the client set none.
absl::Time DeadlineOf(std::chrono::system_clock::time_point deadline);

// Called once, after the response is written, by the thread that completes the request. Must not
// block.
using InferDone = absl::AnyInvocable<void(absl::Status)>;

// Cancels an inference request, whether it is being decoded, waits or runs. Shared by a call and
// the threads that work on its request. Thread-safe.
class Cancellation {
 public:
  // Cancels the request, now or once it is queued. Idempotent.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<InferenceRequest> request;
    {
      const absl::MutexLock lock(&mu_);
      cancelled_ = true;
      request = request_.lock();
    }
    if (request != nullptr) {
      request->Cancel();
    }
  }

  // Returns true after Cancel().
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return cancelled_;
  }

  // Call when the request has been queued.
  void OnQueued(const std::shared_ptr<InferenceRequest>& request) ABSL_LOCKS_EXCLUDED(mu_) {
    bool cancelled = false;
    {
      const absl::MutexLock lock(&mu_);
      request_ = request;
      cancelled = cancelled_;
    }
    if (cancelled) {
      request->Cancel();
    }
  }

 private:
  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::weak_ptr<InferenceRequest> request_ ABSL_GUARDED_BY(mu_);
};

// An admitted call of SubmitRequest(). The pointers are valid until `done` is called.
struct InferCallState {
  const inference::ModelInferRequest* request = nullptr;
  inference::ModelInferResponse* response = nullptr;
  CallFacts* facts = nullptr;
  Ticket* ticket = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<Cancellation> cancellation;
  InferDone done;
};

// Reads and checks the request and pushes it to `queue`, in the order of the calls. Images and
// texts are decoded first, on the decode threads; their tensors count as bytes in flight. Sets
// facts->rows before it returns, and fills the response and the rest of the facts before `done`.
// With RunMode::kMayRunInline, `done` may be called before this returns. On error, the request is
// not queued and `done` is not called.
absl::Status SubmitRequest(const InferContext& context, std::shared_ptr<RequestQueue> queue,
                           InferCallState call);

}  // namespace braid
