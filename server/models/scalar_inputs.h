// Scalar arguments of forward() as text, as configurations and metadata describe them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/models/model_config.h"

namespace braid {

// Describes a scalar input, for example "INT64, default 3".
std::string DescribeScalar(const TensorSpec& spec);

// Compares `config.scalars` with the model's scalar inputs. INVALID_ARGUMENT naming
// `parameters["scalar.NAME"]` if one does not exist or is described differently.
absl::Status CheckScalars(const ModelConfig& config);

}  // namespace braid
