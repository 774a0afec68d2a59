#include "server/rpc/server/open_call_limit.h"

#include <string>

#include "absl/strings/match.h"
#include "grpcpp/server_context.h"

namespace braid {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Interceptor of one call. Owned by gRPC.
class LimitedCall final : public grpc::experimental::Interceptor {
 public:
  LimitedCall(grpc::experimental::ServerRpcInfo* info, OpenCallLimit* limit)
      : info_(info), limit_(limit) {}
  ~LimitedCall() override {
    if (open_) {
      limit_->Close(peer_);
    }
  }
  LimitedCall(const LimitedCall&) = delete;
  LimitedCall& operator=(const LimitedCall&) = delete;

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
  OpenCallLimit* const limit_;
  std::string peer_;
  bool open_ = false;
};

}  // namespace

grpc::experimental::Interceptor* OpenCallLimit::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  return absl::StartsWith(info->method(), methods_) ? new LimitedCall(info, this)
                                                    : nullptr;  // owned by gRPC
}

bool OpenCallLimit::Open(const std::string& peer) {
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

void OpenCallLimit::Close(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  --open_;
  if (const auto found = calls_per_peer_.find(peer); --found->second == 0) {
    calls_per_peer_.erase(found);
  }
}

}  // namespace braid
