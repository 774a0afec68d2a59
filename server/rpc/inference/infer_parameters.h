// Reads the parameters of an inference request that concern the whole request.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/batching/inference_request.h"
#include "server/models/model_config.h"
#include "server/rpc/inference/parameter.h"

namespace braid {

// UNIMPLEMENTED for Triton's parameters that would change the meaning of the request: sequences and
// triton_*. Ignores unknown parameters.
absl::Status CheckParameters(const Parameters& parameters);

// Reads priority and timeout (microseconds). Sets the arrival to now. INVALID_ARGUMENT for negative
// values.
absl::StatusOr<InferenceRequest::Schedule> ReadSchedule(const Parameters& parameters,
                                                        absl::Time deadline);

// Adds the model's scalar inputs (TensorSpec::scalar), which clients send as parameters, to
// `tensors`. INVALID_ARGUMENT if a tensor has such a name, or a parameter has the wrong type.
// CheckInputs() handles missing ones.
absl::Status AddScalars(const ModelConfig& config, const Parameters& parameters,
                        std::vector<HostTensor>* tensors);

}  // namespace braid
