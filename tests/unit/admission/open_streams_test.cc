#include "server/admission/open_streams.h"

#include <memory>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A stream that ends as soon as BeginClose() is called.
class FakeStream final : public OpenStream {
 public:
  explicit FakeStream(OpenStreams* streams) : streams_(streams) {}
  ~FakeStream() override { streams_->Remove(this); }
  void BeginClose(const absl::Status& status) override {
    left_ = status;
    streams_->Remove(this);
  }
  const absl::Status& left() const { return left_; }

 private:
  OpenStreams* const streams_;
  absl::Status left_;
};

class OpenStreamsTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeStream> Make() { return std::make_shared<FakeStream>(&streams_); }

  OpenStreams streams_{2};
};

TEST_F(OpenStreamsTest, CloseEndsAllStreams) {
  const auto first = Make();
  const auto second = Make();
  ASSERT_THAT(streams_.Add(first, "ann"), IsOk());
  ASSERT_THAT(streams_.Add(second, ""), IsOk());
  const absl::Status status = absl::UnavailableError("the server is shutting down");
  streams_.Close(status);
  EXPECT_EQ(first->left(), status);
  EXPECT_EQ(second->left(), status);
}

TEST_F(OpenStreamsTest, RejectsStreamsAfterClose) {
  streams_.Close(absl::UnavailableError("the server is shutting down"));
  const auto late = Make();
  EXPECT_THAT(streams_.Add(late, ""),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
}

TEST_F(OpenStreamsTest, RemovedStreamsAreNotClosed) {
  const auto stays = Make();
  ASSERT_THAT(streams_.Add(stays, ""), IsOk());
  ASSERT_THAT(streams_.Add(Make(), ""), IsOk());  // and is gone
  streams_.Close(absl::UnavailableError("the server is shutting down"));
  EXPECT_FALSE(stays->left().ok());
}

TEST_F(OpenStreamsTest, WaitUntilEmptyWaitsForTheLastStream) {
  EXPECT_TRUE(streams_.WaitUntilEmpty(absl::ZeroDuration()));
  auto last = Make();
  ASSERT_THAT(streams_.Add(last, ""), IsOk());
  EXPECT_FALSE(streams_.WaitUntilEmpty(absl::Milliseconds(1)));
  std::thread holder([held = std::exchange(last, nullptr)]() mutable { held.reset(); });
  EXPECT_TRUE(streams_.WaitUntilEmpty(absl::InfiniteDuration()));
  holder.join();
}

TEST_F(OpenStreamsTest, LimitsStreamsPerClient) {
  auto first = Make();
  const auto second = Make();
  const auto third = Make();
  const auto other = Make();
  ASSERT_THAT(streams_.Add(first, "ann"), IsOk());
  ASSERT_THAT(streams_.Add(second, "ann"), IsOk());
  EXPECT_THAT(streams_.Add(third, "ann"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("2 streams"), HasSubstr("--max_client_requests"))));
  EXPECT_THAT(streams_.Add(other, "bob"), IsOk());
  streams_.Remove(third.get());  // it has no place to give back
  EXPECT_FALSE(streams_.Add(third, "ann").ok());
  first.reset();
  EXPECT_THAT(streams_.Add(third, "ann"), IsOk());
}

TEST_F(OpenStreamsTest, ZeroMeansUnlimited) {
  OpenStreams streams(0);
  const auto first = std::make_shared<FakeStream>(&streams);
  EXPECT_THAT(streams.Add(first, "ann"), IsOk());
}

}  // namespace
}  // namespace braid
