// A number argument of forward(), as ModelConfig tells it and a configuration repeats it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/models/model_config.h"

namespace braid {

// "INT64, default 3". `spec` is a scalar.
std::string DescribeScalar(const TensorSpec& spec);

// INVALID_ARGUMENT naming `parameters["scalar.NAME"]` unless the inputs have each of
// `config.scalars` as it is described there.
absl::Status CheckScalars(const ModelConfig& config);

}  // namespace braid
