// Decoders of a model's inputs, which take encoded rows such as JPEG files, or pad rows.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/models/model_config.h"

namespace braid {

// Sets TensorSpec::decoder of each input of `config` with TensorSpec::decode, and
// TensorSpec::padding of each input with TensorSpec::pad and of its mask. directories: where
// tokenizers are, see MakeDecoder(). INVALID_ARGUMENT, naming the parameter of config.pbtxt, if the
// decoded rows do not fit the input, the input has no batch dimension, two decoders fill one input,
// or a padded length would exceed the input's bounds; NOT_FOUND for a missing file.
absl::Status MakeDecoders(const std::vector<std::string>& directories, ModelConfig* config);

}  // namespace braid
