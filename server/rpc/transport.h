// How messages travel: gRPC's settings of frames, reads and patience, and how large they may be.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_builder.h"

namespace braid {

// `max_age`: of a connection; then its client is told to make another one, and calls on it go on
// for as long as they take. InfiniteDuration: none.
void ConfigureTransport(grpc::ServerBuilder* builder,
                        absl::Duration max_age = absl::InfiniteDuration());

// RESOURCE_EXHAUSTED, and the message empty, if `reply` is too large to be sent: gRPC would end the
// process.
absl::Status CheckReplySize(google::protobuf::MessageLite* reply);

}  // namespace braid
