// How many watches of health are open at once: nobody is asked who opens one, and each lasts.
#pragma once

#include <atomic>

#include "grpcpp/support/server_interceptor.h"

namespace braid {

// Of one server: those beyond `most` are CANCELLED. Calls of other methods are left alone.
class WatchLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit WatchLimit(int most) : most_(most) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

 private:
  const int most_;
  std::atomic<int> open_{0};
};

}  // namespace braid
