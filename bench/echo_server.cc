// What gRPC alone can carry: a server that replies to ModelInfer with the bytes that it got. Writes
// the port to the file that it is given and serves until SIGTERM.
#include <climits>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>

#include "grpcpp/grpcpp.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/transport.h"

namespace {

class Echo final : public inference::GRPCInferenceService::CallbackService {
 public:
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override {
    response->set_model_name(request->model_name());
    for (int i = 0; i < request->inputs_size(); ++i) {
      auto* output = response->add_outputs();
      output->set_name("y");
      output->set_datatype(request->inputs(i).datatype());
      *output->mutable_shape() = request->inputs(i).shape();
      response->add_raw_output_contents(request->raw_input_contents(i));
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: braid-bench-echo PORT_FILE\n");
    return 2;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Echo echo;
  int port = 0;
  grpc::ServerBuilder builder;
  braid::ConfigureTransport({}, &builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fprintf(stderr, "echo: cannot listen\n");
    return 1;
  }
  const std::string path = argv[1];
  std::ofstream(path + ".new") << port << "\n";
  std::rename((path + ".new").c_str(), path.c_str());
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown();
  return 0;
}
