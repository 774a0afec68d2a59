// How many calls are open at once that last, and for which nobody is asked who makes them: watches
// of health, and reflection, which has a thread for each.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_interceptor.h"

namespace braid {

// Of one server, and of methods that begin so: those beyond `most`, and of one connection beyond
// `most_of_connection`, are CANCELLED. Calls of other methods are left alone.
class WatchLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  static constexpr absl::string_view kHealth = "/grpc.health.v1.Health/Watch";
  static constexpr absl::string_view kReflection = "/grpc.reflection.";

  // `methods` lives as long as the program.
  WatchLimit(absl::string_view methods, int most, int most_of_connection)
      : methods_(methods), most_(most), most_of_connection_(most_of_connection) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

  // Whether there is room for one more at the connection of `peer`. Close() gives it back.
  bool Open(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Close(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const absl::string_view methods_;
  const int most_;
  const int most_of_connection_;

  absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, int> of_connection_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
