// How long the strings of a request may be, and how many things it may list: names and ids are
// short, what is long is a tensor.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "inference/grpc_service.pb.h"

namespace braid {

// In bytes. A file's name has 255 at most; a request's id is kept until it is answered, and comes
// back with the answer.
inline constexpr size_t kLongestString = 1024;
// Of one list: losses, groups of parameters, milestones, metrics. Of tensors there are as many as
// the model has, and of numbers that are no integers as many as there are classes or groups.
inline constexpr int kMaxEntries = 1024;

// INVALID_ARGUMENT with the field of `request`, at any depth, that is longer:
// "options.parameter_groups[3].pattern". Contents of tensors, bytes and the model configuration
// that comes with a request to load are left to who reads them.
absl::Status CheckStrings(const google::protobuf::Message& request);
// The same, for the request that comes most often.
absl::Status CheckStrings(const inference::ModelInferRequest& request);

}  // namespace braid
