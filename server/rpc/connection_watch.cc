#include "server/rpc/connection_watch.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/descriptor_limit.h"
#include "server/base/port_sockets.h"
#include "server/rpc/accept_limit.h"
#include "server/rpc/arrived_calls.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using std::chrono::steady_clock;

constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
// As a multiple of what a look took.
constexpr int kPauses = 10;
constexpr std::chrono::seconds kListenerPause{1};
// Connections are looked at when so many calls seem to be on their way, and from time to time, as
// what it is guessed from gets out of step.
constexpr int64_t kWorthLooking = 512;
constexpr std::chrono::seconds kLookAnyway{30};

// How many of them there were.
int64_t End(const std::vector<CountedConnection>& connections) {
  std::map<int, Peers> by_port;
  for (const CountedConnection& connection : connections) {
    by_port[connection.port].emplace(connection.peer_address, connection.peer_port);
  }
  int64_t ended = 0;
  for (const auto& [port, peers] : by_port) {
    ended +=
        EndConnections(port, peers);  // one that cannot be ended now counts again after a while
  }
  return ended;
}

}  // namespace

ConnectionWatch::ConnectionWatch(const Options& options)
    : options_(options),
      resets_(options.streams),
      arriving_(options.arriving),
      listener_(options.port),
      refused_(RefusedConnections()),
      looked_at_connections_(steady_clock::now()),
      looked_at_listener_(steady_clock::now()),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "connections");
}

ConnectionWatch::~ConnectionWatch() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void ConnectionWatch::Run() {
  absl::Duration pause = kPause;
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stop_), pause)) {
        return;
      }
    }
    const absl::Time begin = absl::Now();
    Look();
    // With thousands of connections a look takes a while, and others have work to do.
    pause = std::clamp(kPauses * (absl::Now() - begin), kPause, kLongestPause);
  }
}

void ConnectionWatch::Look() {
  const auto now = steady_clock::now();
  if (now - looked_at_listener_ >= kListenerPause) {
    looked_at_listener_ = now;
    LookAtListener();
    CountRefused();
  }
  const std::vector<CountedServer> servers = CountedServers();
  int64_t open = 0;
  for (const CountedServer& server : servers) {
    open += server.calls.open();
  }
  const int64_t arriving = open - never_over_ - ArrivedCalls::OfProcess().total();
  const bool resets = resets_.WorthLooking(servers);
  if (resets || arriving >= kWorthLooking || now - looked_at_connections_ >= kLookAnyway) {
    LookAtConnections(servers, open);
  } else {
    options_.metrics->SetArrivingCalls(std::max(int64_t{0}, arriving));
  }
}

void ConnectionWatch::LookAtConnections(const std::vector<CountedServer>& servers, int64_t open) {
  looked_at_connections_ = steady_clock::now();
  std::vector<CountedConnection> connections;
  std::vector<ArrivingLimit::Connection> arriving;
  int64_t total = 0;
  for (const CountedServer& server : servers) {
    ForEachConnection(server.id, [&](const CountedConnection& connection) {
      const int64_t streams = connection.streams.open();
      // At once, or calls that end meanwhile would seem not to have arrived.
      const int64_t arrived = ArrivedCalls::OfProcess().Of(connection.peer());
      arriving.push_back({connection.id, std::max(int64_t{0}, streams - arrived)});
      total += arriving.back().arriving;
      connections.push_back(connection);
      open -= streams;
    });
  }
  never_over_ = open;
  options_.metrics->SetArrivingCalls(total);
  EndThoseThatReset(servers, connections);
  EndThoseThatSendNothing(connections, arriving);
}

void ConnectionWatch::EndThoseThatReset(const std::vector<CountedServer>& servers,
                                        const std::vector<CountedConnection>& connections) {
  for (const CountedConnection& connection : resets_.TooMany(servers, connections)) {
    if (End({connection}) > 0) {
      Log(LogModule::kRpc)
          .warn("the connection of {} is ended: its client takes calls back without end",
                connection.name);
    }
  }
}

void ConnectionWatch::EndThoseThatSendNothing(
    const std::vector<CountedConnection>& connections,
    const std::vector<ArrivingLimit::Connection>& arriving) {
  std::vector<CountedConnection> ended;
  int64_t calls = 0;
  for (const size_t place : arriving_.TooMany(arriving, steady_clock::now())) {
    ended.push_back(connections[place]);
    calls += arriving[place].arriving;
  }
  if (const int64_t count = End(ended); count > 0) {
    Log(LogModule::kRpc)
        .warn(
            "{} connections are ended, that of {} the first: their clients have begun {} calls "
            "and do not send them",
            count, ended.front().name, calls);
  }
}

void ConnectionWatch::LookAtListener() {
  if (!listens_) {
    return;  // it has been told
  }
  const absl::Status state = listener_.Look(AcceptCalls());
  // In this order: what is expected is said before it is done.
  if (state.ok() || no_listener_expected_) {
    return;
  }
  listens_ = false;
  Log(LogModule::kRpc).error("{}: a restart would help", std::string(state.message()));
  options_.health->LosePort(state.message());
}

void ConnectionWatch::CountRefused() {
  const int64_t refused = RefusedConnections();
  const int64_t more = refused - std::exchange(refused_, refused);
  if (more > 0) {
    options_.metrics->CountRefusedConnections(more);
    Log(LogModule::kRpc)
        .warn(
            "{} connections are refused: they would take the last of the {} file descriptors "
            "that the server may have open (ulimit -n)",
            more, DescriptorLimit());
  }
}

}  // namespace braid
