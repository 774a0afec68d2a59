// One batch through one replica: the forward half of the arrow.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/batching/model_statistics.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/replica.h"

namespace braid {

// Rows [start, start + rows) of a request's inputs; all of them where the model merges no requests.
struct BatchPart {
  const std::vector<HostTensor>* inputs;
  int64_t start = 0;
  int64_t rows = 0;
};

struct BatchResult {
  // Of each part.
  std::vector<std::vector<HostTensor>> outputs;
  BatchDurations durations;
};

// The payload of the status for an output that does not have the rows or dims of the configuration.
inline constexpr char kOutputShapePayload[] = "braid/output_shape";

// merge → device → forward → cut → host, on the calling thread, which is `worker`'s.
// INVALID_ARGUMENT if the model fails on these inputs, FAILED_PRECONDITION if an output does not
// have the rows or the dims of `config`, UNAVAILABLE, whatever failed, if the device is lost.
absl::StatusOr<BatchResult> RunBatch(const ModelConfig& config, Worker& worker, Replica& replica,
                                     const std::vector<BatchPart>& parts);

}  // namespace braid
