// A stream applies each operation once, despite broken connections and server restarts.
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/stream_fixture.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Fault = FakeTrainingService::Fault;

constexpr int kOperations = 9;

using StreamRestartTest = StreamFixture;

using Break = std::tuple<int, Fault, size_t>;

class StreamBreaksTest : public StreamFixture, public ::testing::WithParamInterface<Break> {};

TEST_P(StreamBreaksTest, ResendsLostOperations) {
  const auto [point, fault, depth] = GetParam();
  Trainer trainer = Create(4);
  std::vector<Fault> faults(static_cast<size_t>(point), Fault::kNone);
  faults.push_back(fault);
  service_.Inject(faults);
  EXPECT_EQ(Lost(Run(trainer, kOperations, {.depth = depth})), 0);
  EXPECT_EQ(service_.history(), StepsInOrder(kOperations));
  EXPECT_EQ(service_.streams(), 2);
  EXPECT_TRUE(trainer.Step(Rows(kOperations), Rows(0)).ok());
}

INSTANTIATE_TEST_SUITE_P(Points, StreamBreaksTest,
                         ::testing::Combine(::testing::Range(0, kOperations),
                                            ::testing::Values(Fault::kLostRequest,
                                                              Fault::kLostReply, Fault::kCrash,
                                                              Fault::kCrashAfterwards),
                                            ::testing::Values(1, 4)));

class StreamSeedTest : public StreamFixture, public ::testing::WithParamInterface<int> {};

TEST_P(StreamSeedTest, SurvivesRandomFaults) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  Trainer trainer = Create(std::vector<int>{1, 3, 7}[random() % 3]);
  std::vector<Fault> faults;
  for (int i = 0; i < 60; ++i) {
    const bool fails = random() % 4 == 0;
    faults.push_back(fails ? static_cast<Fault>(1 + random() % 4) : Fault::kNone);
  }
  const size_t depth = 1 + random() % 6;
  // Lost replies, followed by a broken connection.
  const size_t withheld = random() % depth;
  for (size_t i = 0; i < withheld; ++i) faults[i] = Fault::kWithheld;
  faults[withheld] = static_cast<Fault>(1 + random() % 4);
  service_.Inject(faults);
  for (const LossResult& result : Run(trainer, 30, {.depth = depth})) {
    EXPECT_EQ(result.reply_lost, std::isnan(result.loss));
  }
  EXPECT_EQ(service_.history(), StepsInOrder(30));
}

INSTANTIATE_TEST_SUITE_P(Seeds, StreamSeedTest, ::testing::Range(0, 20));

TEST_F(StreamRestartTest, MarksLostReplies) {
  Trainer trainer = Create();
  service_.Inject({Fault::kWithheld, Fault::kWithheld, Fault::kLostReply});
  const std::vector<LossResult> results = Run(trainer, 5, {.depth = 3});
  EXPECT_EQ(service_.history(), StepsInOrder(5));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(results[i].reply_lost);
    EXPECT_TRUE(std::isnan(results[i].loss));
    EXPECT_EQ(results[i].status.step(), 3);
  }
  EXPECT_TRUE(results[2].status.replayed());
  EXPECT_EQ(Lost(results), 2);
}

TEST_F(StreamRestartTest, RecoversALostPublishReply) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 4});
  service_.Inject({Fault::kNone, Fault::kLostReply});
  stream->Step(Rows(0), Rows(0));
  auto version = stream->Publish();
  auto behind = stream->Step(Rows(1), Rows(0));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(*version.get(), 7);
  EXPECT_EQ(behind.get()->status.applied_sequence(), 3);
  EXPECT_THAT(service_.history(), ElementsAre("step 1 of 0", "publish 2", "step 3 of 1"));
}

TEST_F(StreamRestartTest, DoesNotRepeatOperationsAppliedAfterTheConnectionBroke) {
  Trainer trainer = Create();
  service_.Inject({Fault::kNone, Fault::kNone, Fault::kLostRequest});
  // The server applies an operation of the broken connection after the client has fetched the
  // state.
  service_.AtGetTrainer([](FakeTrainer& fake) {
    v1::StreamRequest operation = StepMessage(Rows(2), Rows(0), {});
    SetHeader("t", fake.last().step().sender(), 3, &operation);
    v1::StreamResponse reply;
    EXPECT_TRUE(fake.Apply(operation, &reply).ok());
  });
  Run(trainer, kOperations, {.depth = 4});
  EXPECT_EQ(service_.history(), StepsInOrder(kOperations));
}

TEST_F(StreamRestartTest, ReadyFuturesKeepTheirResultsDuringReplay) {
  Trainer trainer = Create(100);
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 1});
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(stream->Step(Rows(static_cast<float>(i)), Rows(0)).get().ok());
  service_.Inject({Fault::kCrash});
  ASSERT_TRUE(stream->Step(Rows(4), Rows(0)).get().ok());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(service_.history(), StepsInOrder(5));
  EXPECT_THAT(service_.steps(), SizeIs(10));
}

TEST_F(StreamRestartTest, ReplaysUnaryOperationsFromBeforeTheStream) {
  Trainer trainer = Create(100);
  ASSERT_TRUE(trainer.Step(Rows(0), Rows(0)).ok());
  std::unique_ptr<Stream> stream = Open(trainer, {});
  service_.Inject({Fault::kNone, Fault::kCrash});
  for (int i = 1; i < 4; ++i) stream->Step(Rows(static_cast<float>(i)), Rows(0));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

TEST_F(StreamRestartTest, SurvivesARestartWhileIdle) {
  Trainer trainer = Create(100);
  std::unique_ptr<Stream> stream = Open(trainer, {});
  ASSERT_TRUE(stream->Step(Rows(0), Rows(0)).get().ok());
  service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
  uptime_.SetSeconds(0);
  ASSERT_TRUE(stream->Step(Rows(1), Rows(0)).get().ok());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(service_.history(), StepsInOrder(2));
}

TEST_F(StreamRestartTest, FailsAfterALossWithoutACheckpointPolicy) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 1});
  ASSERT_TRUE(stream->Step(Rows(0), Rows(0)).get().ok());
  service_.Inject({Fault::kCrash});
  const absl::Status lost = stream->Step(Rows(1), Rows(0)).get().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("has no checkpoint policy"));
  EXPECT_EQ(stream->Finish(), lost);
}

TEST_F(StreamRestartTest, FailsIfTheServerStaysUnavailable) {
  MakeClient({.max_attempts = 3,
              .initial_backoff = absl::Milliseconds(1),
              .restart_timeout = absl::Milliseconds(50)});
  Trainer trainer = Create(1);
  service_.Refuse({grpc::StatusCode::UNAVAILABLE, "away"});
  std::unique_ptr<Stream> stream = Open(trainer, {});
  // The last attempt may end with the time that is left instead of the server's answer.
  const absl::Status away = stream->Step(Rows(0), Rows(0)).get().status();
  EXPECT_TRUE(absl::IsUnavailable(away) || absl::IsDeadlineExceeded(away)) << away;
  EXPECT_EQ(stream->Finish(), away);
  service_.Refuse(grpc::Status::OK);
  EXPECT_TRUE(trainer.Step(Rows(0), Rows(0)).ok());
}

// A server stops and starts again at the same address.
TEST_F(StreamRestartTest, SurvivesARestartedServerProcess) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service_);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  client_ =
      std::make_unique<Client>(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  Trainer trainer = Create(3);
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 1});
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(stream->Step(Rows(static_cast<float>(i)), Rows(0)).get().ok());
  server->Shutdown(std::chrono::system_clock::now());
  server.reset();
  auto during = stream->Step(Rows(5), Rows(0));
  service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
  grpc::ServerBuilder again;
  again.AddListeningPort(address, grpc::InsecureServerCredentials());
  again.RegisterService(&service_);
  server = again.BuildAndStart();
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(during.get().ok());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(service_.history(), StepsInOrder(6));
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace braid::client
