// Small HTTP server for a few generated pages.
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

// Serves until it is destroyed. A connection takes one request with at most 16 KiB of headers,
// which must arrive within two seconds, so that slow clients do not occupy the few threads. The
// headers of replies prevent browsers from loading anything from elsewhere, from running inline
// code, and from showing a page within another one. Thread-safe.
class HttpServer {
 public:
  // Called by up to kThreads threads at a time.
  using Page = std::function<HttpReply()>;
  static constexpr int kThreads = 6;

  // `pages` are keyed by path, such as "/metrics", and answer GET and HEAD. Other paths return 404,
  // other methods 405. Port 0 chooses a free port. UNAVAILABLE if the address cannot be bound.
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
