#include "server/rpc/grpc_server.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/rpc/device_service.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/tls_credentials.h"
#include "server/rpc/training_service.h"
#include "server/rpc/transport.h"
#include "spdlog/spdlog.h"

namespace braid {
namespace {

// Health names, besides one for each model.
constexpr char kLiveness[] = "liveness";
constexpr char kReadiness[] = "readiness";

// gRPC writes to stderr what its callers learn from a status anyway.
void LogQuietly(gpr_log_func_args* entry) { spdlog::debug("gRPC: {}", entry->message); }

}  // namespace

class GrpcServer::Impl {
 public:
  explicit Impl(const Options& options)
      : models_(options.models),
        credentials_(options.tls == nullptr ? grpc::InsecureServerCredentials()
                                            : MakeTlsCredentials(options.tls)),
        inference_(options.models, options.control, options.regions, Shared(options)),
        training_(options.trainers, Shared(options)),
        devices_(options.list_slots, Shared(options)) {}

  absl::Status Listen(const std::string& host, int port) {
    gpr_set_log_function(LogQuietly);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    ConfigureTransport(&builder);
    builder.AddListeningPort(absl::StrCat(host, ":", port), credentials_, &port_);
    builder.RegisterService(&inference_);
    builder.RegisterService(&training_);
    builder.RegisterService(&devices_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("--grpc_port: cannot listen on ", host, ":", port, "; is the port in use?"));
    }
    server_->GetHealthCheckService()->SetServingStatus(kLiveness, true);
    SetReady(false);
    return absl::OkStatus();
  }

  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(mu_) {
    inference_.SetReady(ready);
    const absl::MutexLock lock(&mu_);
    ready_ = ready;
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", ready);
    health->SetServingStatus(kReadiness, ready);
    for (const ModelState& model : models_->List()) {
      health->SetServingStatus(model.name, ready && models_->Find(model.name, 0).ok());
    }
  }
  void SetModelReady(const std::string& model, bool ready) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    server_->GetHealthCheckService()->SetServingStatus(model, ready && ready_);
  }

  void Shutdown(absl::Time deadline) { server_->Shutdown(absl::ToChronoTime(deadline)); }
  int port() const { return port_; }

 private:
  static RpcContext Shared(const Options& options) {
    return {options.admission,
            options.metrics,
            {options.access, [trainers = options.trainers](absl::string_view trainer) {
               return trainers->ModelOf(trainer);
             }}};
  }

  ServedModels* const models_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // outlives the server
  InferenceService inference_;
  TrainingService training_;
  DeviceService devices_;
  int port_ = 0;
  // Held while the health service is told, so that it is told the last state last.
  absl::Mutex mu_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  // Last member: its calls use the services.
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Listen(options.host, options.port); !status.ok()) {
    return status;
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;

void GrpcServer::SetReady(bool ready) { impl_->SetReady(ready); }
void GrpcServer::SetModelReady(const std::string& model, bool ready) {
  impl_->SetModelReady(model, ready);
}
void GrpcServer::Shutdown(absl::Time deadline) { impl_->Shutdown(deadline); }
int GrpcServer::port() const { return impl_->port(); }

}  // namespace braid
