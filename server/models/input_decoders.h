// Decoders of a model's inputs, which take encoded rows such as JPEG files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/models/model_config.h"

namespace braid {

// Sets TensorSpec::decoder of each input of `config` with TensorSpec::decode. directories: where
// tokenizers are, see MakeDecoder(). INVALID_ARGUMENT, naming the parameter of config.pbtxt, if the
// decoded rows do not fit the input, the input has no batch dimension, or two decoders fill one
// input; NOT_FOUND for a missing file.
absl::Status MakeDecoders(const std::vector<std::string>& directories, ModelConfig* config);

}  // namespace braid
