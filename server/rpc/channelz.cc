#include "server/rpc/channelz.h"

#include <algorithm>
#include <initializer_list>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "nlohmann/json.hpp"

namespace braid {
namespace {

using nlohmann::json;

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
Counted Count(const json& data, const std::string& what) {
  return {.started = Number(At(data, {(what + "Started").c_str()})),
          .succeeded = Number(At(data, {(what + "Succeeded").c_str()})),
          .failed = Number(At(data, {(what + "Failed").c_str()}))};
}

CountedConnection Read(int64_t id, const json& connection) {
  const json& here = At(connection, {"local", "tcpip_address"});
  const json& there = At(connection, {"remote", "tcpip_address"});
  CountedConnection read;
  read.id = id;
  read.name = Text(At(connection, {"ref", "name"}));
  read.streams = Count(At(connection, {"data"}), "streams");
  read.port = static_cast<int>(Number(At(here, {"port"})));
  absl::Base64Unescape(Text(At(there, {"ip_address"})), &read.peer_address);
  read.peer_port = static_cast<int>(Number(At(there, {"port"})));
  return read;
}

}  // namespace

// The name is the transport's kind and its peer, with a space between.
absl::string_view CountedConnection::peer() const {
  const absl::string_view all = name;
  return all.substr(all.rfind(' ') + 1);  // all of it if there is no space
}

std::vector<CountedServer> CountedServers() {
  std::vector<CountedServer> servers;
  const json told = Parse(grpc_channelz_get_servers(0));
  for (const json& server : At(told, {"server"})) {
    servers.push_back({.id = Number(At(server, {"ref", "serverId"})),
                       .calls = Count(At(server, {"data"}), "calls")});
  }
  return servers;
}

void ForEachConnection(int64_t server, absl::FunctionRef<void(const CountedConnection&)> visit) {
  int64_t start = 0;
  while (true) {
    const json page = Parse(grpc_channelz_get_server_sockets(server, start, /*max_results=*/0));
    const json& found = At(page, {"socketRef"});
    for (const json& connection : found) {
      const int64_t id = Number(At(connection, {"socketId"}));
      start = std::max(start, id + 1);
      const json told = Parse(grpc_channelz_get_socket(id));
      visit(Read(id, At(told, {"socket"})));
    }
    if (found.empty() || At(page, {"end"}) == true) {
      return;
    }
  }
}

}  // namespace braid
