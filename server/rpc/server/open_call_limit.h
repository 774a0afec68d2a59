// Limits long-lived calls that need no credentials: health watches, and reflection, which occupies
// a thread per call.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_interceptor.h"

namespace braid {

// Interceptor for the methods that start with a prefix. Cancels their calls beyond the limits.
// Owned by the gRPC server; thread-safe.
class OpenCallLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  static constexpr absl::string_view kHealth = "/grpc.health.v1.Health/Watch";
  static constexpr absl::string_view kReflection = "/grpc.reflection.";

  // methods: prefix of method names; a string literal. max_calls: open calls over all connections.
  // max_per_connection: open calls of one connection.
  OpenCallLimit(absl::string_view methods, int max_calls, int max_per_connection)
      : methods_(methods), max_calls_(max_calls), max_per_connection_(max_per_connection) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

  // Registers a call from `peer`. Returns false if a limit is reached; otherwise the caller must
  // call Close().
  bool Open(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Close(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const absl::string_view methods_;
  const int max_calls_;
  const int max_per_connection_;

  absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, int> calls_per_peer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
