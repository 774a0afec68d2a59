// A gRPC server with Braid's transport settings (server/rpc/server/transport.h), without the rest
// of the server.
#pragma once

#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace grpc {
class Service;
}

namespace braid::bench {

// Serves on a free port until SIGTERM. Writes the port to `port_file` once the server is ready.
// Returns the program's exit status.
int Serve(grpc::Service* service, const std::string& port_file);

// Completes the call on the calling thread with the reply filled in so far, or with an error.
grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context,
                                const grpc::Status& status = grpc::Status::OK);

}  // namespace braid::bench
