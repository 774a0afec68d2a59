// Triton's classification extension: an output's largest elements instead of the tensor.
#pragma once

#include <cstdint>

#include "inference/grpc_service.pb.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"

namespace braid {

// True for integers, FP32 and FP64, as in Triton.
bool CanClassify(DataType type);

// Adds an output of datatype BYTES and shape [rows, classes] to the reply: "value:index" or
// "value:index:label" of the `classes` largest elements of each row, largest first, NaN last. Fewer
// columns if a row has fewer elements. Without `batched`, the whole tensor is one row: [classes].
void WriteClasses(const GatheredTensor& tensor, const TensorSpec& spec, bool batched,
                  int64_t classes, inference::ModelInferResponse* response);

}  // namespace braid
