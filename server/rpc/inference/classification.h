// Triton's classification extension: an output's largest elements instead of the tensor.
#pragma once

#include <cstdint>

#include "inference/grpc_service.pb.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"

namespace braid {

// Integers, FP32 and FP64, as in Triton.
bool CanClassify(DataType type);

// Adds to the reply, under the output's name, BYTES of "value:index" or "value:index:label" for the
// `classes` largest elements of each row (of the whole tensor where the model is not `batched`),
// the largest first, a NaN last: [rows, classes], or fewer where there are fewer elements.
void WriteClasses(const GatheredTensor& tensor, const TensorSpec& spec, bool batched,
                  int64_t classes, inference::ModelInferResponse* response);

}  // namespace braid
