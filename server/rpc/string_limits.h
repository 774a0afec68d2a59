// How long the strings of a request may be: names and ids are short, what is long is a tensor.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "inference/grpc_service.pb.h"

namespace braid {

// In bytes. A file's name has 255 at most; a request's id is kept until it is answered, and comes
// back with the answer.
inline constexpr size_t kLongestString = 1024;

// INVALID_ARGUMENT with the field of `request` itself that is longer. Its parts are looked at by
// who reads them.
absl::Status CheckStrings(const google::protobuf::Message& request);
// The same, with its parameters, and the names and parameters of its inputs and outputs.
absl::Status CheckStrings(const inference::ModelInferRequest& request);

}  // namespace braid
