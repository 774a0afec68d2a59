#include "bench/inference/serve.h"

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>

#include "grpcpp/grpcpp.h"
#include "server/rpc/server/transport.h"

namespace braid::bench {

int Serve(grpc::Service* service, const std::string& port_file) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  int port = 0;
  grpc::ServerBuilder builder;
  ConfigureTransport({}, &builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fprintf(stderr, "cannot listen\n");
    return 1;
  }
  std::ofstream(port_file + ".new") << port << "\n";
  std::rename((port_file + ".new").c_str(), port_file.c_str());
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown();
  return 0;
}

grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace braid::bench
