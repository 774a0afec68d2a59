// The outputs that an inference request asks for, and their form in the reply.
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
  size_t index = 0;  // into ModelConfig::outputs
  // 0: return the tensor. Else the names and values of this many classes, largest value first.
  int64_t classes = 0;
  // Destination in shared memory, if it has a region; else the reply.
  SharedSlice memory;
};

// Returns the outputs in the order of the request, or all outputs if it names none. regions: null
// if shared memory is disabled. INVALID_ARGUMENT for an unknown or duplicate output, or one that
// does not support the requested form.
absl::StatusOr<std::vector<RequestedOutput>> ReadRequestedOutputs(
    const ModelConfig& config, const inference::ModelInferRequest& request,
    const SharedRegions* regions);

// Writes the wanted outputs into the reply or into shared memory. INVALID_ARGUMENT if an output
// exceeds its region.
absl::Status WriteOutputs(const ModelConfig& config, const InferenceResult& result,
                          const std::vector<RequestedOutput>& wanted,
                          inference::ModelInferResponse* response);

}  // namespace braid
