// The wire's typed contents (InferTensorContents): one repeated field for each kind of number.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/base/host_tensor.h"

namespace braid {

// Fills `tensor`, whose type, shape and bytes are set, from the field of `contents` that goes with
// its type. It points into `contents` where the field's elements are the tensor's, else into a copy
// of its own. INVALID_ARGUMENT naming `field` for another field, a wrong count, a number that the
// type cannot hold, and for FP16 and BF16, which travel raw only.
absl::Status ReadTypedContents(const inference::InferTensorContents& contents,
                               const std::string& field, HostTensor* tensor);

}  // namespace braid
