#include "server/rpc/server/health_server.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/resource_quota.h"
#include "server/rpc/server/grpc_log.h"
#include "server/rpc/server/health_reporter.h"
#include "server/rpc/server/open_call_limit.h"

namespace braid {
namespace {

// Limits that suffice for probes. A request contains only a service name.
constexpr int kMaxRequestBytes = 4096;
constexpr int kMaxCallsPerConnection = 16;
constexpr int kMaxWatches = 256;
// Probes send their request at once. Slow, idle and old connections are closed.
constexpr int kHandshakeMilliseconds = 5'000;
constexpr int kIdleMilliseconds = 60'000;
constexpr int kAgeMilliseconds = 600'000;
constexpr int kGraceMilliseconds = 10'000;
constexpr size_t kBufferBytes = size_t{64} << 20;

}  // namespace

class HealthServer::Impl {
 public:
  ~Impl() {
    reporter_.reset();
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
    }
  }

  absl::Status Listen(const std::string& host, int port, Health* health) {
    RedirectGrpcLog();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    // Prevents a second server from sharing the port.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kAgeMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kGraceMilliseconds);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    grpc::ResourceQuota quota("health");
    quota.Resize(kBufferBytes);
    builder.SetResourceQuota(quota);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> call_limits;
    call_limits.push_back(std::make_unique<OpenCallLimit>(OpenCallLimit::kHealth, kMaxWatches,
                                                          kMaxCallsPerConnection));
    builder.experimental().SetInterceptorCreators(std::move(call_limits));
    builder.AddListeningPort(absl::StrCat(host, ":", port), grpc::InsecureServerCredentials(),
                             &port_);
    // gRPC requires a registered service. This one replies UNIMPLEMENTED.
    builder.RegisterCallbackGenericService(&others_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("--health_port: cannot listen on ", host, ":",
                                                 port, " (is the port in use?)"));
    }
    reporter_.emplace(health, server_->GetHealthCheckService());
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  grpc::CallbackGenericService others_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::optional<HealthReporter> reporter_;
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Create(const std::string& host,
                                                                   int port, Health* health) {
  auto impl = std::make_unique<Impl>();
  if (absl::Status status = impl->Listen(host, port, health); !status.ok()) {
    return status;
  }
  return std::unique_ptr<HealthServer>(new HealthServer(std::move(impl)));
}

HealthServer::HealthServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HealthServer::~HealthServer() = default;

int HealthServer::port() const { return impl_->port(); }

}  // namespace braid
