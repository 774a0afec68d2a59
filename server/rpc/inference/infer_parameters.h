// What the parameters of an inference request say of the request as a whole.
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

// UNIMPLEMENTED, by name, for a parameter of Triton's that would change what the request means: of
// a sequence, and of triton_*. What neither Triton nor the model knows is nobody's, and left alone.
absl::Status CheckParameters(const Parameters& parameters);

// `arrival` is now; `deadline` the call's. INVALID_ARGUMENT for a priority or timeout below 0.
absl::StatusOr<InferenceRequest::Schedule> ReadSchedule(const Parameters& parameters,
                                                        absl::Time deadline);

// Adds the model's number arguments (TensorSpec::scalar), which are parameters of their names, to
// the `tensors` of the request, which must have none of these names. INVALID_ARGUMENT for one of
// another kind; one that is missing is left for CheckInputs() to judge.
absl::Status AddScalars(const ModelConfig& config, const Parameters& parameters,
                        std::vector<HostTensor>* tensors);

}  // namespace braid
