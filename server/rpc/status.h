// From absl::Status to grpc::Status, with google.rpc details.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace braid {

// The same code and message; a field that InvalidField() named becomes google.rpc.BadRequest.
grpc::Status ToGrpcStatus(const absl::Status& status);

// "INVALID_ARGUMENT".
absl::string_view CodeName(grpc::StatusCode code);

}  // namespace braid
