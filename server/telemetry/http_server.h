// A small HTTP server for machines that ask: a few pages, which are made when they are asked for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_connection;
struct mg_context;

namespace braid {

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Serves until it is destroyed. A connection is one request, whose head has at most 4 KiB and is
// there within seconds: whoever is slow keeps one of a few threads no longer than that.
class HttpServer {
 public:
  // Called by as many threads at a time.
  using Page = std::function<HttpReply()>;
  static constexpr int kThreads = 4;

  // `pages` by their paths: "/metrics". GET and HEAD of them are answered; another path is 404,
  // another method 405. Port 0: a free one. UNAVAILABLE if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const std::string& host, int port,
                                                            std::map<std::string, Page> pages);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  HttpServer(std::string host, std::map<std::string, Page> pages);

  // CivetWeb's callback.
  static int Answer(mg_connection* connection);
  HttpReply ReplyTo(const std::string& method, const std::string& path) const;

  const std::string host_;
  const std::map<std::string, Page> pages_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace braid
