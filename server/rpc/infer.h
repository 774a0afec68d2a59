// ModelInfer: from the message to the queue, and from the result to the message.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "inference/grpc_service.pb.h"
#include "server/batching/served_models.h"
#include "server/rpc/call.h"

namespace braid {

// Checks `request` and queues it; the worker that finishes it fills `response` and `call`. The
// messages live until then. An error: nothing was queued, and the call is the caller's to finish.
absl::Status StartInfer(const ServedModels& models, const inference::ModelInferRequest& request,
                        absl::Time deadline, inference::ModelInferResponse* response,
                        std::shared_ptr<UnaryCall> call);

}  // namespace braid
