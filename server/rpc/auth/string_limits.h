// Limits of the strings and lists in a request, other than tensors.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "inference/grpc_service.pb.h"

namespace braid {

// Bytes. Names become file names of at most 255 bytes. The ID of a request is kept until its reply.
inline constexpr size_t kMaxStringBytes = 1024;
// Entries of one list, such as losses or parameter groups. Tensors and floating-point numbers are
// limited by the model instead, the files of a dataset by kMaxDatasetFiles.
inline constexpr int kMaxEntries = 1024;

// INVALID_ARGUMENT, naming the field, if a string or list exceeds its limit at any depth, for
// example "options.parameter_groups[3].pattern". Does not check tensors, bytes, and the
// configuration in a load request.
absl::Status CheckStrings(const google::protobuf::Message& request);
// Overload without reflection, for the most frequent request.
absl::Status CheckStrings(const inference::ModelInferRequest& request);

}  // namespace braid
