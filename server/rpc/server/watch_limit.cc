#include "server/rpc/server/watch_limit.h"

#include <string>

#include "absl/strings/match.h"
#include "grpcpp/server_context.h"

namespace braid {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Interceptor of one call. Owned by gRPC.
class Watch final : public grpc::experimental::Interceptor {
 public:
  Watch(grpc::experimental::ServerRpcInfo* info, WatchLimit* limit) : info_(info), limit_(limit) {}
  ~Watch() override {
    if (open_) {
      limit_->Close(peer_);
    }
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    // Synchronous calls have no peer before this hook.
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      peer_ = info_->server_context()->peer();
      open_ = limit_->Open(peer_);
      if (!open_) {
        info_->server_context()->TryCancel();
      }
    }
    methods->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* const info_;
  WatchLimit* const limit_;
  std::string peer_;
  bool open_ = false;
};

}  // namespace

grpc::experimental::Interceptor* WatchLimit::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  return absl::StartsWith(info->method(), methods_) ? new Watch(info, this)
                                                    : nullptr;  // owned by gRPC
}

bool WatchLimit::Open(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  const auto found = calls_per_peer_.find(peer);
  const int calls = found == calls_per_peer_.end() ? 0 : found->second;
  if (open_ >= max_calls_ || calls >= max_per_connection_) {
    return false;
  }
  ++open_;
  calls_per_peer_[peer] = calls + 1;
  return true;
}

void WatchLimit::Close(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  --open_;
  if (const auto found = calls_per_peer_.find(peer); --found->second == 0) {
    calls_per_peer_.erase(found);
  }
}

}  // namespace braid
