// A gRPC server with Braid's settings of messages (server/rpc/server/transport.h) and nothing else
// of it.
#pragma once

#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace grpc {
class Service;
}

namespace braid::bench {

// Serves on a port of its own, which it writes to `port_file` when it can be called, until SIGTERM.
// Returns the program's exit status.
int Serve(grpc::Service* service, const std::string& port_file);

// Ends the call on the thread that brought it: the reply is complete, or there is none.
grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context,
                                const grpc::Status& status = grpc::Status::OK);

}  // namespace braid::bench
