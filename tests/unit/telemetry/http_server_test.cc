#include "server/telemetry/http_server.h"

#include <civetweb.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <list>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/http_call.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    auto server = HttpServer::Create("127.0.0.1", 0, {{"/page", [this] {
                                                         ++made_;
                                                         HttpReply reply;
                                                         reply.content_type = "text/x";
                                                         reply.body = "the page\n";
                                                         return reply;
                                                       }}});
    EXPECT_THAT(server, IsOk());
    server_ = *std::move(server);
  }

  std::string Reply(std::string_view method, std::string_view path) const {
    return Ask(server_->port(), method, path);
  }

  std::atomic<int> made_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, GetReturnsThePage) {
  const std::string reply = Reply("GET", "/page");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/x\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_THAT(reply, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Security-Policy: default-src 'none'; "));
  EXPECT_THAT(reply, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(reply, Not(HasSubstr("Set-Cookie")));
  EXPECT_THAT(reply, EndsWith("\r\n\r\nthe page\n"));
  EXPECT_THAT(Reply("GET", "/page?a=b"), EndsWith("the page\n"));
  EXPECT_EQ(made_, 2);
}

TEST_F(HttpServerTest, HeadReturnsOnlyHeaders) {
  const std::string reply = Reply("HEAD", "/page");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\n"));
}

TEST(HttpServer, PagesMayUseAMegabyteOfStack) {
  constexpr size_t kDriverNeeds = size_t{1} << 20;
  const auto server =
      HttpServer::Create("127.0.0.1", 0, {{"/page", [] {
                                             volatile char used[kDriverNeeds];
                                             std::fill(std::begin(used), std::end(used), 'x');
                                             return HttpReply();
                                           }}});
  ASSERT_THAT(server, IsOk());
  EXPECT_THAT(Ask((*server)->port(), "GET", "/page"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, RejectsOtherMethods) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string reply = Reply(method, "/page");
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 405 ")) << method;
    EXPECT_THAT(reply, HasSubstr("Allow: GET, HEAD\r\n")) << method;
  }
  EXPECT_EQ(made_, 0);
}

TEST_F(HttpServerTest, RejectsOtherPaths) {
  for (const char* path : {"/", "/page/", "/pages", "/../etc/passwd", "/page/../..", "/PAGE"}) {
    EXPECT_THAT(Reply("GET", path), StartsWith("HTTP/1.1 404 ")) << path;
  }
}

TEST_F(HttpServerTest, RejectsInvalidRequests) {
  HttpCall call(server_->port());
  call.Send("what?\r\n\r\n");
  EXPECT_THAT(call.Receive(), HasSubstr(" 400 Bad Request\r\n"));
}

TEST_F(HttpServerTest, RejectsLargeHeaders) {
  HttpCall call(server_->port());
  call.Send("GET /page HTTP/1.1\r\nX: " + std::string(16384, 'x'));
  EXPECT_THAT(call.Receive(), HasSubstr(" 4"));
  EXPECT_EQ(made_, 0);
}

// Browsers send the cookies of all servers on a host, whatever their port.
TEST_F(HttpServerTest, AcceptsTheCookiesOfOtherServers) {
  HttpCall call(server_->port());
  call.Send("GET /page HTTP/1.1\r\nCookie: " + std::string(12000, 'x') + "\r\n\r\n");
  EXPECT_THAT(call.Receive(), EndsWith("the page\n"));
}

TEST_F(HttpServerTest, DoesNotWaitForABody) {
  HttpCall call(server_->port());
  const absl::Time start = absl::Now();
  call.Send("GET /page HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_THAT(call.Receive(), EndsWith("the page\n"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

TEST_F(HttpServerTest, DisconnectsSlowClientsAndServesOthers) {
  std::list<HttpCall> slow;
  for (int i = 0; i < 2 * HttpServer::kThreads; ++i) {
    slow.emplace_back(server_->port());
    slow.back().Send("GET /pa");
  }
  EXPECT_THAT(Reply("GET", "/page"), EndsWith("the page\n"));
  for (HttpCall& call : slow) {
    EXPECT_THAT(call.Receive(), HasSubstr(" 400 Bad Request\r\n"));
  }
}

TEST_F(HttpServerTest, StopsAtOnceWhenIdle) {
  EXPECT_THAT(Reply("GET", "/page"), EndsWith("the page\n"));
  const absl::Time start = absl::Now();
  server_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

TEST_F(HttpServerTest, NamesAPortInUse) {
  const auto second = HttpServer::Create("127.0.0.1", server_->port(), {});
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("127.0.0.1:" + std::to_string(server_->port()))));
}

TEST(HttpServerAddressTest, ListensOnAllAddressesAndOnNames) {
  for (const char* host : {"0.0.0.0", "localhost"}) {
    const absl::Time start = absl::Now();
    EXPECT_THAT(HttpServer::Create(host, 0, {}), IsOk()) << host;
    EXPECT_LT(absl::Now() - start, absl::Seconds(1)) << host;
  }
}

TEST(HttpServerAddressTest, ReportsMissingIpv6) {
  const auto server = HttpServer::Create("[::1]", 0, {});
  if (mg_check_feature(MG_FEATURES_IPV6) != 0) {
    ASSERT_THAT(server, IsOk());
    EXPECT_THAT((*server)->port(), ::testing::Gt(0));
  } else {
    EXPECT_THAT(server, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lacks IPv6")));
  }
}

}  // namespace
}  // namespace braid
