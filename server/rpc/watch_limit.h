// How many watches of health are open at once: nobody is asked who opens one, and each lasts.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_interceptor.h"

namespace braid {

// Of one server: those beyond `most`, and of one connection beyond `most_of_connection`, are
// CANCELLED. Calls of other methods are left alone.
class WatchLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  WatchLimit(int most, int most_of_connection)
      : most_(most), most_of_connection_(most_of_connection) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

  // Whether there is room for one more at the connection of `peer`. Close() gives it back.
  bool Open(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Close(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int most_;
  const int most_of_connection_;

  absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, int> of_connection_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
