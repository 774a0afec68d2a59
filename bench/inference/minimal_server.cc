// braid-bench-minimal: a minimal server for the model 784→512→512→10. Runs the forward pass on the
// gRPC thread that receives the request, without queue, batching, checks or metrics. Without
// MODEL.pt, it replies with zeros, which measures gRPC alone. Rejects other model names with
// RESOURCE_EXHAUSTED, like an overloaded server. Supports the calls of Triton's perf_analyzer.
// Writes its port to PORT_FILE and serves until SIGTERM.
#include <cstdio>
#include <memory>
#include <string>

#include "bench/common/run_main.h"
#include "bench/inference/forward.h"
#include "bench/inference/serve.h"
#include "inference/grpc_service.grpc.pb.h"

namespace braid::bench {
namespace {

constexpr char kModel[] = "mlp";
constexpr char kVersion[] = "1";
constexpr char kRejection[] = "no capacity for other models";
constexpr int64_t kFeatures = 784;
constexpr int64_t kClasses = 10;
constexpr int kMaxBatch = 4096;

template <typename Tensor>
void Describe(const char* name, int64_t columns, Tensor* tensor) {
  tensor->set_name(name);
  tensor->set_datatype("FP32");
  tensor->add_shape(-1);
  tensor->add_shape(columns);
}

template <typename Tensor>
void Configure(const char* name, int64_t columns, Tensor* tensor) {
  tensor->set_name(name);
  tensor->set_data_type(inference::TYPE_FP32);
  tensor->add_dims(columns);
}

class MinimalServer final : public inference::GRPCInferenceService::CallbackService {
 public:
  // `forward` must outlive this object. If it is null, outputs are zeros.
  explicit MinimalServer(Forward* forward) : forward_(forward) {}

  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override {
    if (request->model_name() != kModel) {
      return Reply(context, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, kRejection));
    }
    const int64_t rows = request->inputs(0).shape(0);
    response->set_model_name(request->model_name());
    response->set_model_version(kVersion);
    response->set_id(request->id());
    auto* const output = response->add_outputs();
    output->set_name("y");
    output->set_datatype("FP32");
    output->add_shape(rows);
    output->add_shape(kClasses);
    std::string* const y = response->add_raw_output_contents();
    if (forward_ != nullptr) {
      forward_->Run(request->raw_input_contents(0), y);
    } else {
      y->resize(static_cast<size_t>(rows * kClasses) * sizeof(float));
    }
    return Reply(context);
  }

  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const inference::ServerMetadataRequest* /*request*/,
                                           inference::ServerMetadataResponse* response) override {
    response->set_name("minimal");
    return Reply(context);
  }

  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* /*request*/,
                                          inference::ModelMetadataResponse* response) override {
    response->set_name(kModel);
    response->add_versions(std::string(kVersion));
    Describe("x", kFeatures, response->add_inputs());
    Describe("y", kClasses, response->add_outputs());
    return Reply(context);
  }

  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context,
                                        const inference::ModelConfigRequest* /*request*/,
                                        inference::ModelConfigResponse* response) override {
    inference::ModelConfig* const config = response->mutable_config();
    config->set_name(kModel);
    config->set_max_batch_size(kMaxBatch);
    Configure("x", kFeatures, config->add_input());
    Configure("y", kClasses, config->add_output());
    return Reply(context);
  }

  // Accepts registrations but never reads the memory: this measures requests without payload.
  grpc::ServerUnaryReactor* SystemSharedMemoryRegister(
      grpc::CallbackServerContext* context,
      const inference::SystemSharedMemoryRegisterRequest* /*request*/,
      inference::SystemSharedMemoryRegisterResponse* /*response*/) override {
    return Reply(context);
  }

 private:
  Forward* const forward_;
};

int Main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: braid-bench-minimal PORT_FILE [MODEL.pt]\n");
    return 2;
  }
  const auto forward = argc == 3 ? std::make_unique<Forward>(argv[2], kFeatures) : nullptr;
  MinimalServer server(forward.get());
  return Serve(&server, argv[1]);
}

}  // namespace
}  // namespace braid::bench

int main(int argc, char** argv) {
  return braid::bench::RunMain("minimal", braid::bench::Main, argc, argv);
}
