// Reads typed contents (InferTensorContents), which have one repeated field per kind of number.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/base/host_tensor.h"

namespace braid {

// Sets the data of `tensor`, whose type, shape and bytes are set, from the field of `contents` for
// its type. Points into `contents` if the element types are equal; else owns a copy.
// INVALID_ARGUMENT, naming `field`, if another field is set, for a wrong count, for a number out of
// range, and for FP16 and BF16, which require raw contents.
absl::Status ReadTypedContents(const inference::InferTensorContents& contents,
                               const std::string& field, HostTensor* tensor);

}  // namespace braid
