// Looks at the connections of the process's gRPC servers all the time, and ends those whose clients
// take what gRPC 1.51 has no limit for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/arriving_limit.h"
#include "server/rpc/channelz.h"
#include "server/rpc/listener_watch.h"
#include "server/rpc/reset_limit.h"
#include "server/telemetry/health.h"
#include "server/telemetry/metrics.h"

namespace braid {

// From construction to destruction.
class ConnectionWatch {
 public:
  struct Options {
    int port = 0;          // at which a server listens: when it does not any more, health is told
    int streams = 0;       // that a connection may have open
    int64_t arriving = 0;  // calls that may be on their way for long, of all connections
    // Outlive the watch.
    Metrics* metrics = nullptr;
    Health* health = nullptr;
  };

  explicit ConnectionWatch(const Options& options);
  ~ConnectionWatch();
  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  // The port is about to be closed, on purpose. Any thread.
  void ExpectNoListener() { no_listener_expected_ = true; }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Look();
  void LookAtConnections(const std::vector<CountedServer>& servers, int64_t open);
  void EndThoseThatReset(const std::vector<CountedServer>& servers,
                         const std::vector<CountedConnection>& connections);
  void EndThoseThatSendNothing(const std::vector<CountedConnection>& connections,
                               const std::vector<ArrivingLimit::Connection>& arriving);
  // What takes no look at connections, once a second.
  void LookAtListener();
  void CountRefused();

  const Options options_;
  std::atomic<bool> no_listener_expected_ = false;

  // Of the thread alone.
  ResetLimit resets_;
  ArrivingLimit arriving_;
  ListenerWatch listener_;
  bool listens_ = true;
  int64_t refused_ = 0;
  // Calls that gRPC counts as open for ever, as of the last look at all connections.
  int64_t never_over_ = 0;
  std::chrono::steady_clock::time_point looked_at_connections_;
  std::chrono::steady_clock::time_point looked_at_listener_;

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
