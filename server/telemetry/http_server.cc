#include "server/telemetry/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(10);

// Sent with every reply.
constexpr char kHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src data:; "
    "script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Connection: close\r\n";

absl::string_view Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

int LogMessage(const mg_connection*, const char* message) {
  Log(LogModule::kServer).debug("HTTP: {}", message);
  return 1;  // handled
}

// Wakes CivetWeb with a connection: it checks whether it should stop at each connection, else only
// every two seconds.
void Wake(std::string host, int port) {
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return;  // CivetWeb stops by itself
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  const int type = addresses->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
  if (const int caller = socket(addresses->ai_family, type, 0); caller >= 0) {
    // Does not wait for the result.
    std::ignore = connect(caller, addresses->ai_addr, addresses->ai_addrlen);
    close(caller);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const std::string& host, int port,
                                                               std::map<std::string, Page> pages) {
  std::unique_ptr<HttpServer> server(new HttpServer(host, std::move(pages)));
  const std::string address = absl::StrCat(host, ":", port);
  const std::string threads = absl::StrCat(kThreads);
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           threads.c_str(),
                           "request_timeout_ms",
                           "2000",
                           "max_request_size",
                           "16384",
                           "enable_directory_listing",
                           "no",
                           nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = &HttpServer::Answer;
  callbacks.log_message = &LogMessage;
  server->context_ = mg_start(&callbacks, server.get(), options);
  mg_server_port bound = {};
  if (server->context_ == nullptr || mg_get_server_ports(server->context_, 1, &bound) != 1) {
    const bool no_ipv6 = host.front() == '[' && mg_check_feature(MG_FEATURES_IPV6) == 0;
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address,
        no_ipv6 ? ": this system's CivetWeb library lacks IPv6" : " (is the port in use?)"));
  }
  server->port_ = bound.port;
  return server;
}

HttpServer::HttpServer(std::string host, std::map<std::string, Page> pages)
    : host_(std::move(host)), pages_(std::move(pages)) {}

HttpServer::~HttpServer() {
  if (context_ == nullptr) {
    return;
  }
  absl::Notification stopped;
  std::thread stopper([&] {
    mg_stop(context_);
    stopped.Notify();
  });
  do {
    Wake(host_, port_);
  } while (!stopped.WaitForNotificationWithTimeout(kRetryInterval));
  stopper.join();
}

int HttpServer::Answer(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const auto& server = *static_cast<const HttpServer*>(request.user_data);
  const std::string method = request.request_method;
  // CivetWeb's threads have small stacks, which the driver's functions for metrics overflow.
  const HttpReply reply = std::async(std::launch::async, [&] {
                            return server.ReplyTo(method, request.local_uri);
                          }).get();
  std::string text = absl::StrCat(
      "HTTP/1.1 ", reply.code, " ", Reason(reply.code), "\r\nContent-Type: ", reply.content_type,
      "\r\nContent-Length: ", reply.body.size(), "\r\n",
      reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", kHeaders, "\r\n");
  if (method != "HEAD") {
    text += reply.body;
  }
  // Also discards the body of the request.
  mg_disable_connection_keep_alive(connection);
  mg_write(connection, text.data(), text.size());
  return reply.code;
}

HttpReply HttpServer::ReplyTo(const std::string& method, const std::string& path) const {
  const auto page = pages_.find(path);
  HttpReply reply;
  if (page == pages_.end()) {
    reply.code = 404;
    reply.body = "not found\n";
  } else if (method != "GET" && method != "HEAD") {
    reply.code = 405;
    reply.body = "expected GET or HEAD\n";
  } else {
    reply = page->second();
  }
  return reply;
}

}  // namespace braid
