// inference.GRPCInferenceService: the Open Inference Protocol, as Triton extends it.
#pragma once

#include <atomic>
#include <string>

#include "inference/grpc_service.grpc.pb.h"
#include "server/batching/served_models.h"
#include "server/rpc/call.h"

namespace braid {

// Thread-safe. No method blocks: ModelInfer is answered by the worker that finishes it.
class InferenceService final : public inference::GRPCInferenceService::CallbackService {
 public:
  // `models` and what `rpc` points to outlive the service.
  InferenceService(ServedModels* models, const RpcContext& rpc) : models_(models), rpc_(rpc) {}

  // What ServerReady says.
  void SetReady(bool ready) { ready_ = ready; }

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* ServerLive(Context* context, const inference::ServerLiveRequest* request,
                      inference::ServerLiveResponse* response) override;
  Reactor* ServerReady(Context* context, const inference::ServerReadyRequest* request,
                       inference::ServerReadyResponse* response) override;
  Reactor* ModelReady(Context* context, const inference::ModelReadyRequest* request,
                      inference::ModelReadyResponse* response) override;
  Reactor* ServerMetadata(Context* context, const inference::ServerMetadataRequest* request,
                          inference::ServerMetadataResponse* response) override;
  Reactor* ModelMetadata(Context* context, const inference::ModelMetadataRequest* request,
                         inference::ModelMetadataResponse* response) override;
  Reactor* ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                       inference::ModelConfigResponse* response) override;
  Reactor* RepositoryIndex(Context* context, const inference::RepositoryIndexRequest* request,
                           inference::RepositoryIndexResponse* response) override;
  Reactor* ModelInfer(Context* context, const inference::ModelInferRequest* request,
                      inference::ModelInferResponse* response) override;

 private:
  ServedModels* const models_;
  const RpcContext rpc_;
  std::atomic<bool> ready_{false};
};

}  // namespace braid
