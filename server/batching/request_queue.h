// Where the requests for one version of a model go.
#pragma once

#include <cstdint>
#include <memory>

#include "server/batching/inference_request.h"
#include "server/models/model_config.h"

namespace braid {

// Thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Queues a request, which free workers then take. It is bounded by what admission lets in.
  virtual void Push(std::shared_ptr<InferenceRequest> request) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t version() const = 0;
};

}  // namespace braid
