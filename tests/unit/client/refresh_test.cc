// Refresh resolves operations whose outcome is unknown.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/stream_fixture.h"

namespace braid::client {
namespace {

using ::testing::HasSubstr;
using Fault = FakeTrainingService::Fault;

class RefreshTest : public StreamFixture {
 protected:
  static void Steps(Trainer& trainer, int from, int to) {
    for (int i = from; i < to; ++i) {
      ASSERT_TRUE(trainer.Step(Rows(static_cast<float>(i)), Rows(0)).ok());
    }
  }
  // Runs a step that times out and is not applied. Returns its request.
  v1::StreamRequest TimeOut(Trainer& trainer, float value) {
    service_.Refuse({grpc::StatusCode::DEADLINE_EXCEEDED, "late"});
    EXPECT_TRUE(absl::IsDeadlineExceeded(trainer.Step(Rows(value), Rows(0)).status()));
    service_.Refuse(grpc::Status::OK);
    v1::StreamRequest operation;
    *operation.mutable_step() = service_.steps().back();
    return operation;
  }
  static void ApplyLate(const v1::StreamRequest& operation, FakeTrainer& fake) {
    v1::StreamResponse reply;
    EXPECT_TRUE(fake.Apply(operation, &reply).ok());
  }
  void ExpectRefreshTo(Trainer& trainer, int64_t sequence) {
    const absl::Status status = trainer.Refresh();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(trainer.sequence(), sequence);
    EXPECT_EQ(trainer.info().applied_sequence(), sequence);
  }
  void ExpectResendsOnlyFrom(Trainer& trainer, int64_t sequence) {
    Restart();
    const absl::Status lost = trainer.Step(Rows(99), Rows(0)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
    EXPECT_THAT(std::string(lost.message()),
                HasSubstr(absl::StrCat("can resend only from ", sequence)));
  }
  // Restarts the trainer from its durable state; connections stay open.
  void Restart() {
    service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
    uptime_.Restart();
  }
};

TEST_F(RefreshTest, WaitsForOperationsInFlight) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  const v1::StreamRequest late = TimeOut(trainer, 2);
  service_.BeforeSettledReply([&late](FakeTrainer& fake) { ApplyLate(late, fake); });
  ExpectRefreshTo(trainer, 3);
  Steps(trainer, 3, 5);
  EXPECT_EQ(service_.history(), StepsInOrder(5));
}

TEST_F(RefreshTest, RetainsAnUnansweredOperationThatWasApplied) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  const v1::StreamRequest late = TimeOut(trainer, 2);
  service_.Edit([&late](FakeTrainer& fake) { ApplyLate(late, fake); });
  ExpectRefreshTo(trainer, 3);
  Steps(trainer, 3, 4);
  Restart();
  Steps(trainer, 4, 5);
  EXPECT_EQ(service_.history(), StepsInOrder(5));
}

TEST_F(RefreshTest, ForgetsOnlyUnansweredOperationsThatWereNotApplied) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  TimeOut(trainer, 22);
  ExpectRefreshTo(trainer, 2);
  Steps(trainer, 2, 3);
  Restart();
  Steps(trainer, 3, 4);
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

TEST_F(RefreshTest, RetainsAppliedOperationsOfAnAbandonedStream) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  {
    std::vector<Stream::Future<LossResult>> losses;
    std::unique_ptr<Stream> stream = Open(trainer, {.depth = 3});
    service_.Inject({Fault::kWithheld, Fault::kWithheld, Fault::kWithheld});
    for (int i = 2; i < 5; ++i) {
      losses.push_back(stream->Step(Rows(static_cast<float>(i)), Rows(0)));
    }
    service_.AwaitHistory(5);
  }
  ExpectRefreshTo(trainer, 5);
  Steps(trainer, 5, 6);
  Restart();
  Steps(trainer, 6, 7);
  EXPECT_EQ(service_.history(), StepsInOrder(7));
}

TEST_F(RefreshTest, ARejectedOperationDoesNotReplaceTheUnansweredOne) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  const v1::StreamRequest late = TimeOut(trainer, 2);
  service_.Edit([&late](FakeTrainer& fake) { ApplyLate(late, fake); });
  EXPECT_TRUE(absl::IsAborted(trainer.Step(Rows(33), Rows(0)).status()));
  ExpectRefreshTo(trainer, 3);
  Restart();
  Steps(trainer, 3, 4);
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

// After an operation other than the last unanswered one, nothing before it can be replayed.
TEST_F(RefreshTest, ServerDecidesWhichOfTwoUnansweredOperationsWasApplied) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  const v1::StreamRequest late = TimeOut(trainer, 2);
  TimeOut(trainer, 33);
  service_.Edit([&late](FakeTrainer& fake) { ApplyLate(late, fake); });
  ExpectRefreshTo(trainer, 3);
  Steps(trainer, 3, 4);
  EXPECT_EQ(service_.history(), StepsInOrder(4));
  ExpectResendsOnlyFrom(trainer, 4);
}

TEST_F(RefreshTest, DoesNotAdoptOperationsOfAnotherClient) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  TimeOut(trainer, 2);
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 22, 23);
  ExpectRefreshTo(trainer, 3);
  ExpectResendsOnlyFrom(trainer, 4);
}

TEST_F(RefreshTest, ReplaysAfterARestartDuringRefresh) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 3);
  service_.BeforeSettledReply([this](FakeTrainer& fake) {
    fake.Restart();
    uptime_.Restart();
  });
  ExpectRefreshTo(trainer, 3);
  Steps(trainer, 3, 4);
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

}  // namespace
}  // namespace braid::client
