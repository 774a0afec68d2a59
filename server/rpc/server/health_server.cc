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
#include "server/rpc/server/watch_limit.h"

namespace braid {
namespace {

// A request is a name; whoever has more than so many calls open on a connection is no probe.
constexpr int kRequestBytes = 4096;
constexpr int kCallsOfAConnection = 16;
constexpr int kWatches = 256;
// A probe asks as soon as it is connected. Who does not, or keeps a connection that it does not
// use, makes room for others; so does, after a while, whoever has a call open.
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
    LogGrpcQuietly();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    // Else a second server could share the port.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsOfAConnection);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kAgeMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kGraceMilliseconds);
    builder.SetMaxReceiveMessageSize(kRequestBytes);
    grpc::ResourceQuota quota("health");
    quota.Resize(kBufferBytes);
    builder.SetResourceQuota(quota);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> watches;
    watches.push_back(
        std::make_unique<WatchLimit>(WatchLimit::kHealth, kWatches, kCallsOfAConnection));
    builder.experimental().SetInterceptorCreators(std::move(watches));
    builder.AddListeningPort(absl::StrCat(host, ":", port), grpc::InsecureServerCredentials(),
                             &port_);
    // gRPC builds no server without a service of ours. This one answers UNIMPLEMENTED.
    builder.RegisterCallbackGenericService(&others_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("--health_port: cannot listen on ", host, ":",
                                                 port, "; is the port in use?"));
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
