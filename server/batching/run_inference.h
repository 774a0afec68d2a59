// Runs one batch through one replica.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/base/host_tensor.h"
#include "server/batching/inference_request.h"
#include "server/batching/model_statistics.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/replica.h"

namespace braid {

struct BatchResult {
  // For each RequestRows of the batch, the outputs in the model's order, in host memory.
  std::vector<std::vector<HostTensor>> outputs;
  BatchDurations durations;
};

// Returns the rows to run. They stay valid until RunInference() returns. If there are
// none, it returns OK.
using TakeBatch = absl::FunctionRef<absl::Span<const RequestRows>()>;
// Receives the outputs. Not called after an error.
using ReplyToBatch = absl::FunctionRef<void(BatchResult)>;

// Payload of the error for an output whose shape does not match the configuration.
inline constexpr char kOutputShapePayload[] = "braid/output_shape";

// Runs the phases of one batch in order: take, copy in (which merges each input), forward,
// copy out, split outputs, reply. Blocks. `worker`'s device must be current: see Device::Enter().
//
// Errors:
// - INVALID_ARGUMENT: the model raised an error for these inputs.
// - FAILED_PRECONDITION: an output does not have the shape that `config` states.
// - RESOURCE_EXHAUSTED: out of memory.
// - UNAVAILABLE: the device is lost; this takes precedence.
absl::Status RunInference(const ModelConfig& config, Worker& worker, Replica& replica,
                          TakeBatch take, ReplyToBatch reply);

// Runs one batch outside a queue, for warm-up and tests of a model. Returns the outputs in
// the model's order; they may share memory with `inputs`, which must live as long. Blocks and fails
// like RunInference().
absl::StatusOr<std::vector<HostTensor>> RunOnce(const ModelConfig& config, Worker& worker,
                                                Replica& replica,
                                                const std::vector<HostTensor>& inputs,
                                                int64_t rows);

}  // namespace braid
