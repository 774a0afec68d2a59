// The outputs that an inference request asks for, and in what form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "server/batching/inference_request.h"
#include "server/models/model_config.h"
#include "server/shared_memory/shared_regions.h"

namespace braid {

struct RequestedOutput {
  size_t index = 0;  // among the model's outputs
  // 0: the tensor. Else the names and values of that many classes, the most probable first.
  int64_t classes = 0;
  // Where the tensor goes instead of the reply, if it has a region.
  SharedSlice memory;
};

// In the order of the request; all of the model's if none is named. INVALID_ARGUMENT for an output
// that is unknown, there twice, or that cannot have the form asked for; `regions` is ReadSlice()'s.
absl::StatusOr<std::vector<RequestedOutput>> ReadRequestedOutputs(
    const ModelConfig& config, const inference::ModelInferRequest& request,
    const SharedRegions* regions);

// Writes `wanted` of `result` into the reply and into shared memory. INVALID_ARGUMENT if an output
// is larger than its place there.
absl::Status WriteOutputs(const ModelConfig& config, const InferenceResult& result,
                          const std::vector<RequestedOutput>& wanted,
                          inference::ModelInferResponse* response);

}  // namespace braid
