// gRPC channel settings: frames, timeouts and message sizes.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_builder.h"
#include "server/rpc/server/connection_limits.h"

namespace braid {

// Applies `limits` and the settings for large messages.
void ConfigureTransport(const ConnectionLimits& limits, grpc::ServerBuilder* builder);

// RESOURCE_EXHAUSTED, and clears `reply`, if it exceeds 2 GiB, the limit of a message: gRPC would
// abort the process.
absl::Status CheckReplySize(google::protobuf::MessageLite* reply);

}  // namespace braid
