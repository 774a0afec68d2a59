// Where the requests for one version of a model go.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/batching/inference_request.h"
#include "server/batching/model_statistics.h"
#include "server/models/model_config.h"

namespace braid {

// Who runs a request.
enum class Runner {
  kWorker,
  // Also the thread that brings it, if a worker is free and waking it would take longer.
  kAnyThread,
};

// Thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Queues a request, which free workers then take. RESOURCE_EXHAUSTED, and it is not queued, if as
  // many wait as the model's queue policy allows. With Runner::kAnyThread it may be answered before
  // this returns.
  virtual absl::Status Push(std::shared_ptr<InferenceRequest> request,
                            Runner runner = Runner::kWorker) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t version() const = 0;
  virtual const ModelStatistics& statistics() const = 0;
};

}  // namespace braid
