#include "server/rpc/watch_limit.h"

#include <string_view>

#include "grpcpp/server_context.h"

namespace braid {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Lives as long as its call.
class Watch final : public grpc::experimental::Interceptor {
 public:
  Watch(grpc::experimental::ServerRpcInfo* info, std::atomic<int>* open, int most)
      : info_(info), open_(open), refused_(open->fetch_add(1) >= most) {}
  ~Watch() override { --*open_; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (refused_ &&
        methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      info_->server_context()->TryCancel();
    }
    methods->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* const info_;
  std::atomic<int>* const open_;
  const bool refused_;
};

}  // namespace

grpc::experimental::Interceptor* WatchLimit::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  const bool watch = std::string_view(info->method()) == "/grpc.health.v1.Health/Watch";
  return watch ? new Watch(info, &open_, most_) : nullptr;  // gRPC's
}

}  // namespace braid
