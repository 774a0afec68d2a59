// braid-bench-echo: a server that replies to ModelInfer with the bytes of the request. Measures
// what gRPC alone can carry. Writes its port to PORT_FILE and serves until SIGTERM.
#include <cstdio>

#include "bench/inference/serve.h"
#include "inference/grpc_service.grpc.pb.h"

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
    return braid::bench::Reply(context);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: braid-bench-echo PORT_FILE\n");
    return 2;
  }
  Echo echo;
  return braid::bench::Serve(&echo, argv[1]);
}
