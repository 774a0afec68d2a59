// Interface of the queue of one model version, without LibTorch headers.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/batching/inference_request.h"
#include "server/batching/model_statistics.h"
#include "server/batching/ordered_replies.h"
#include "server/models/model_config.h"

namespace braid {

// Chooses the thread that runs a request.
enum class RunMode {
  kOnWorker,
  // On the calling thread if a worker is idle and waking it would take longer than the request.
  kMayRunInline,
};

// Thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Queues a request and wakes idle workers. With kMayRunInline, the request may be completed
  // before this returns. RESOURCE_EXHAUSTED, without queueing, if the queue of the request's
  // priority is full (max_queue_size).
  virtual absl::Status Push(std::shared_ptr<InferenceRequest> request,
                            RunMode mode = RunMode::kOnWorker) = 0;

  // Returns the order in which requests must be pushed: a request takes a slot on arrival, and is
  // pushed when the slot is delivered. nullptr if requests may be pushed in any order, because
  // replies are not ordered or no inputs are decoded.
  virtual OrderedReplies* arrivals() const = 0;
  // For the model's metrics, see ModelMetrics.
  virtual void CountDecoded(int64_t rows, absl::Duration busy) = 0;
  virtual void CountDecodeFailure() = 0;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t version() const = 0;
  virtual const ModelStatistics& statistics() const = 0;
};

}  // namespace braid
