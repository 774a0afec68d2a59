// How messages travel: gRPC's settings of frames, reads and patience, and how large they may be.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_builder.h"
#include "server/rpc/server/connection_limits.h"

namespace braid {

void ConfigureTransport(const ConnectionLimits& limits, grpc::ServerBuilder* builder);

// RESOURCE_EXHAUSTED, and the message empty, if `reply` is too large to be sent: gRPC would end the
// process.
absl::Status CheckReplySize(google::protobuf::MessageLite* reply);

}  // namespace braid
