// Converts absl::Status to grpc::Status with google.rpc details.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace braid {

// Keeps code and message. A field named by InvalidField() becomes google.rpc.BadRequest.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Returns the name of a code, for example "INVALID_ARGUMENT".
absl::string_view CodeName(grpc::StatusCode code);

}  // namespace braid
