#include "client/cpp/call.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::client {
namespace {

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "away");

TEST(CallTest, ConvertsEveryCodeWithItsMessage) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status = ToAbsl({static_cast<grpc::StatusCode>(code), "why"});
    EXPECT_EQ(static_cast<int>(status.code()), code);
    // Abseil's OK has no message.
    EXPECT_EQ(status.message(), code == 0 ? "" : "why");
  }
}

TEST(CallTest, StoresErrorDetailsAsPayload) {
  const absl::Status status = ToAbsl({grpc::StatusCode::INVALID_ARGUMENT, "why", "details"});
  EXPECT_EQ(status.GetPayload("type.googleapis.com/google.rpc.Status"), absl::Cord("details"));
}

TEST(CallTest, RetriesOnlyUnavailable) {
  for (int code = 0; code <= 16; ++code) {
    int attempts = 0;
    const CallPolicy policy{.max_attempts = 4, .initial_backoff = absl::Microseconds(1)};
    const absl::Status status = CallWithRetry(policy, [&](grpc::ClientContext*) {
      ++attempts;
      return grpc::Status(static_cast<grpc::StatusCode>(code), "why");
    });
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(attempts, code == grpc::StatusCode::UNAVAILABLE ? 4 : 1) << code;
  }
}

TEST(CallTest, StopsRetryingAfterSuccess) {
  int attempts = 0;
  const CallPolicy policy{.max_attempts = 4, .initial_backoff = absl::Microseconds(1)};
  const absl::Status status = CallWithRetry(policy, [&](grpc::ClientContext*) {
    return ++attempts < 3 ? kUnavailable : grpc::Status::OK;
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(attempts, 3);
}

TEST(CallTest, DoesNotBackOffPastTheTimeout) {
  int attempts = 0;
  const CallPolicy policy{
      .timeout = absl::Minutes(1), .max_attempts = 4, .initial_backoff = absl::Hours(1)};
  const absl::Status status = CallWithRetry(policy, [&](grpc::ClientContext*) {
    ++attempts;
    return kUnavailable;
  });
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(attempts, 1);
}

TEST(CallTest, DoublesTheBackoffUpToItsMaximum) {
  const CallPolicy policy{.initial_backoff = absl::Milliseconds(100),
                          .max_backoff = absl::Seconds(2)};
  EXPECT_EQ(Backoff(policy, 1), absl::Milliseconds(100));
  EXPECT_EQ(Backoff(policy, 3), absl::Milliseconds(400));
  EXPECT_EQ(Backoff(policy, 6), absl::Seconds(2));
  EXPECT_EQ(Backoff(policy, 1000000), absl::Seconds(2));
}

TEST(CallTest, StopsRetryingAfterTheRetryWindow) {
  int attempts = 0;
  int counted = 0;
  const CallPolicy policy{.max_attempts = 1000000,
                          .initial_backoff = absl::Milliseconds(1),
                          .max_backoff = absl::Milliseconds(1),
                          .retry_window = absl::Milliseconds(20)};
  const absl::Status status = CallWithRetry(
      policy,
      [&](grpc::ClientContext*) {
        ++attempts;
        return kUnavailable;
      },
      &counted);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(counted, attempts);
  EXPECT_GT(attempts, 1);
  EXPECT_LE(attempts, 21);
}

TEST(CallTest, WithMessageKeepsCodeAndDetails) {
  const absl::Status status = ToAbsl({grpc::StatusCode::ABORTED, "why", "details"});
  const absl::Status other = WithMessage(status, "why not");
  EXPECT_TRUE(absl::IsAborted(other));
  EXPECT_EQ(other.message(), "why not");
  EXPECT_EQ(other.GetPayload("type.googleapis.com/google.rpc.Status"), absl::Cord("details"));
}

TEST(CallTest, AttemptsShareOneDeadline) {
  std::vector<std::chrono::system_clock::time_point> deadlines;
  const CallPolicy policy{
      .timeout = absl::Hours(1), .max_attempts = 3, .initial_backoff = absl::Microseconds(1)};
  const absl::Time before = absl::Now();
  CallWithRetry(policy, [&](grpc::ClientContext* context) {
    deadlines.push_back(context->deadline());
    return kUnavailable;
  }).IgnoreError();
  ASSERT_EQ(deadlines.size(), 3);
  // gRPC keeps nanoseconds, std::chrono rounds them.
  EXPECT_GE(absl::FromChrono(deadlines[0]), before + absl::Hours(1) - absl::Microseconds(1));
  EXPECT_EQ(deadlines[0], deadlines[1]);
  EXPECT_EQ(deadlines[0], deadlines[2]);
}

TEST(CallTest, WithoutATimeoutThereIsNoDeadline) {
  CallWithRetry({}, [&](grpc::ClientContext* context) {
    EXPECT_EQ(context->deadline(), std::chrono::system_clock::time_point::max());
    return grpc::Status::OK;
  }).IgnoreError();
}

TEST(CallTest, RequestsBeyondTwoGibibytesAreNotSent) {
  constexpr size_t kLimit = (size_t{1} << 31) - 1;
  EXPECT_TRUE(CheckSendable(kLimit).ok());
  const absl::Status status = CheckSendable(kLimit + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("2147483648 bytes"));
}

}  // namespace
}  // namespace braid::client
