#include "server/rpc/server/grpc_server.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/message.h"
#include "grpc/grpc.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/base/port_sockets.h"
#include "server/rpc/data/data_service.h"
#include "server/rpc/device_service.h"
#include "server/rpc/inference/inference_service.h"
#include "server/rpc/jobs/job_service.h"
#include "server/rpc/model_service.h"
#include "server/rpc/server/grpc_log.h"
#include "server/rpc/server/health_reporter.h"
#include "server/rpc/server/open_call_limit.h"
#include "server/rpc/server/tls_credentials.h"
#include "server/rpc/server/transport.h"
#include "server/rpc/training/training_service.h"

namespace braid {
namespace {

// Health watches take 17 kB each. A load balancer opens one per connection.
constexpr int kMaxWatches = 4096;
constexpr int kMaxWatchesPerConnection = 16;
// Each open reflection call occupies a thread.
constexpr int kMaxReflections = 256;
// Interval for polling whether sent bytes were acknowledged; there is no notification.
constexpr absl::Duration kAcknowledgementPoll = absl::Milliseconds(1);

// Keeps gRPC initialized until the process ends. Its shutdown with the last server can take 20
// seconds if a client does not read.
void KeepGrpcInitialized() {
  static absl::once_flag once;
  absl::call_once(once, grpc_init);
}

}  // namespace

class GrpcServer::Impl {
 public:
  explicit Impl(const Options& options)
      : health_(options.health),
        credentials_(options.tls == nullptr ? grpc::InsecureServerCredentials()
                                            : MakeTlsCredentials(options.tls)),
        inference_(options.models, options.control, options.regions, options.decode_threads,
                   options.health, Shared(options)),
        training_(options.trainers, Shared(options)),
        models_(options.publisher, options.max_upload_bytes, Shared(options)),
        devices_(options.list_slots, Shared(options)),
        data_(options.data, options.datasets, options.jobs, Shared(options)),
        jobs_(options.jobs, Shared(options)) {}

  absl::Status Listen(const std::string& host, int port, const ConnectionLimits& limits) {
    RedirectGrpcLog();
    KeepGrpcInitialized();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Reflection looks for descriptors in the program. Without a reference, the linker drops these.
    google::protobuf::LinkMessageReflection<grpc::health::v1::HealthCheckRequest>();
    grpc::ServerBuilder builder;
    ConfigureTransport(limits, &builder);
    // Health watches and reflection need no credentials, so their number is limited.
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> call_limits;
    call_limits.push_back(std::make_unique<OpenCallLimit>(OpenCallLimit::kHealth, kMaxWatches,
                                                          kMaxWatchesPerConnection));
    call_limits.push_back(std::make_unique<OpenCallLimit>(
        OpenCallLimit::kReflection, kMaxReflections, kMaxWatchesPerConnection));
    builder.experimental().SetInterceptorCreators(std::move(call_limits));
    builder.AddListeningPort(absl::StrCat(host, ":", port), credentials_, &port_);
    builder.RegisterService(&inference_);
    builder.RegisterService(&training_);
    builder.RegisterService(&models_);
    builder.RegisterService(&devices_);
    builder.RegisterService(&data_);
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("--grpc_port: cannot listen on ", host, ":", port,
                                                 " (is the port in use?)"));
    }
    reporter_.emplace(health_, server_->GetHealthCheckService());
    return absl::OkStatus();
  }

  void StopListening() { braid::StopListening(port_); }
  void Shutdown() {
    StopListening();  // disconnected clients could reconnect otherwise
    // Closes the sockets first: gRPC's GOAWAY carries an error that clients print.
    EndAllConnections(port_);
    grpc_server_cancel_all_calls(server_->c_server());
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }
  int port() const { return port_; }

 private:
  static RpcContext Shared(const Options& options) {
    return {options.admission,
            options.streams,
            options.metrics,
            {options.access,
             [trainers = options.trainers](absl::string_view trainer) {
               return trainers->ModelOf(trainer);
             },
             options.admission->limits_clients(), options.metrics}};
  }

  Health* const health_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // outlives the server
  InferenceService inference_;
  TrainingService training_;
  ModelService models_;
  DeviceService devices_;
  DataService data_;
  JobService jobs_;
  int port_ = 0;
  // Declared after everything that its calls use.
  std::unique_ptr<grpc::Server> server_;
  // Uses the server's health service.
  std::optional<HealthReporter> reporter_;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Listen(options.host, options.port, options.connections);
      !status.ok()) {
    return status;
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() { Shutdown(); }

void GrpcServer::StopListening() { impl_->StopListening(); }

bool GrpcServer::WaitUntilDelivered(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (UndeliveredBytes(port()) > 0) {
    if (absl::Now() >= end) {
      return false;
    }
    absl::SleepFor(kAcknowledgementPoll);
  }
  return true;
}

void GrpcServer::Shutdown() { impl_->Shutdown(); }
int GrpcServer::port() const { return impl_->port(); }

}  // namespace braid
