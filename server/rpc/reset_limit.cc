#include "server/rpc/reset_limit.h"

#include <pthread.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "nlohmann/json.hpp"
#include "server/base/port_sockets.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
// As a multiple of what a look took.
constexpr int kPauses = 10;
// Connections are looked at when so many calls more have not succeeded on all together.
constexpr int64_t kWorthLooking = 512;

// What gRPC says of itself; it owns nothing of it.
json Parse(char* text) {
  const std::unique_ptr<char, decltype(&gpr_free)> owned(text, &gpr_free);
  return json::parse(text == nullptr ? "" : text, nullptr, /*allow_exceptions=*/false);
}

// The member at the end of `path`; null if there is none.
const json& At(const json& object, std::initializer_list<const char*> path) {
  static const json kNone;
  const json* at = &object;
  for (const char* const name : path) {
    const auto member = at->is_object() ? at->find(name) : at->end();
    if (!at->is_object() || member == at->end()) {
      return kNone;
    }
    at = &*member;
  }
  return *at;
}

// Numbers of 64 bits are text, as protobuf's JSON has them; none is 0.
int64_t Number(const json& value) {
  int64_t number = 0;
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  return value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)
             ? number
             : 0;
}

std::string Text(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// Of the calls or streams of a server or a connection.
int64_t Unsuccessful(const json& data, const std::string& what) {
  return Number(At(data, {(what + "Started").c_str()})) -
         Number(At(data, {(what + "Succeeded").c_str()}));
}

// Calls `visit(id, connection)` with those that `server` has.
template <typename Visit>
void ForEachConnection(int64_t server, Visit visit) {
  int64_t start = 0;
  while (true) {
    const json page = Parse(grpc_channelz_get_server_sockets(server, start, /*max_results=*/0));
    const json& found = At(page, {"socketRef"});
    for (const json& connection : found) {
      const int64_t id = Number(At(connection, {"socketId"}));
      start = std::max(start, id + 1);
      const json told = Parse(grpc_channelz_get_socket(id));
      visit(id, At(told, {"socket"}));
    }
    if (found.empty() || At(page, {"end"}) == true) {
      return;
    }
  }
}

void End(const json& connection) {
  const json& here = At(connection, {"local", "tcpip_address"});
  const json& there = At(connection, {"remote", "tcpip_address"});
  std::string address;
  // If it cannot be ended now, it is looked at again.
  if (absl::Base64Unescape(Text(At(there, {"ip_address"})), &address) &&
      EndConnection(static_cast<int>(Number(At(here, {"port"}))), address,
                    static_cast<int>(Number(At(there, {"port"}))))) {
    Log(LogModule::kRpc)
        .warn("the connection of {} is ended: its client takes calls back without end",
              Text(At(connection, {"ref", "name"})));
  }
}

}  // namespace

bool RecentResets::TooMany(int64_t total, int64_t fresh, std::chrono::duration<double> since,
                           int streams) {
  fresh = std::min(fresh, total - std::exchange(total_, total));
  recent_ = std::max(0.0, recent_ - kEachSecond * since.count() + static_cast<double>(fresh));
  return recent_ > kAtOnce + streams;
}

ResetLimit::ResetLimit(int streams) : streams_(streams), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "reset_limit");
}

ResetLimit::~ResetLimit() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void ResetLimit::Run() {
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

void ResetLimit::Look() {
  int64_t total = 0;
  std::vector<int64_t> ids;
  const json servers = Parse(grpc_channelz_get_servers(0));
  for (const json& server : At(servers, {"server"})) {
    ids.push_back(Number(At(server, {"ref", "serverId"})));
    total += Unsuccessful(At(server, {"data"}), "calls");
  }
  if (total - total_ < kWorthLooking) {
    total_ = std::min(total_, total);
    return;
  }
  LookAtConnections(ids, total - std::exchange(total_, total));
}

void ResetLimit::LookAtConnections(const std::vector<int64_t>& servers, int64_t fresh) {
  const auto now = std::chrono::steady_clock::now();
  const auto since = now - std::exchange(looked_, now);
  // Of connections that are gone nothing is kept.
  const auto before = std::exchange(connections_, {});
  for (const int64_t server : servers) {
    ForEachConnection(server, [&](int64_t id, const json& connection) {
      const auto known = before.find(id);
      RecentResets& resets = connections_[id];
      resets = known == before.end() ? RecentResets() : known->second;
      if (resets.TooMany(Unsuccessful(At(connection, {"data"}), "streams"), fresh, since,
                         streams_)) {
        End(connection);
      }
    });
  }
}

}  // namespace braid
