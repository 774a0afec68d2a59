// How messages travel: gRPC's settings of frames, reads and patience.
#pragma once

#include "grpcpp/server_builder.h"

namespace braid {

void ConfigureTransport(grpc::ServerBuilder* builder);

}  // namespace braid
