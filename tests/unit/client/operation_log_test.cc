#include "client/cpp/operation_log.h"

#include <memory>
#include <string>
#include <vector>

#include "client/cpp/messages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::client {
namespace {

using ::testing::HasSubstr;

OperationLog::Operation Numbered(int64_t sequence, size_t bytes = 0) {
  v1::StreamRequest operation = StepMessage({{"x", "UINT8", {}, std::string(bytes, 'x')}}, {}, {});
  SetHeader("t", {}, sequence, &operation);
  return std::make_shared<const v1::StreamRequest>(std::move(operation));
}

OperationLog Filled(int64_t from, int64_t to, bool keeps) {
  OperationLog log(from - 1, keeps);
  for (int64_t sequence = from; sequence <= to; ++sequence) log.Add(Numbered(sequence));
  return log;
}

TEST(OperationLogTest, OperationsStayUntilTheyAreDurable) {
  OperationLog log = Filled(3, 6, true);
  log.Trim(6, 4);
  EXPECT_EQ(log.base(), 4);
  EXPECT_EQ(log.last(), 6);
  EXPECT_EQ(SequenceOf(*log.Get(5)), 5);
  log.Trim(6, 6);
  EXPECT_EQ(log.base(), 6);
  EXPECT_EQ(log.last(), 6);
}

TEST(OperationLogTest, DurableOperationsWithoutAReplyStay) {
  OperationLog log = Filled(3, 6, true);
  log.Trim(4, 6);
  EXPECT_EQ(log.base(), 4);
  EXPECT_EQ(SequenceOf(*log.Get(5)), 5);
}

TEST(OperationLogTest, WithoutAPolicyTheyStayUntilTheyAreApplied) {
  OperationLog log = Filled(1, 4, false);
  log.Trim(3, 0);
  EXPECT_EQ(log.base(), 3);
  EXPECT_EQ(SequenceOf(*log.Get(4)), 4);
}

TEST(OperationLogTest, IsFullAtItsLimitOfOperationsOrBytes) {
  OperationLog log(0, true);
  log.Limit(2, OperationLog::kDefaultBytes);
  EXPECT_FALSE(log.IsFull(size_t{1} << 40));
  log.Add(Numbered(1));
  EXPECT_FALSE(log.IsFull(100));
  EXPECT_TRUE(log.IsFull(size_t{512} << 20));
  log.Add(Numbered(2));
  EXPECT_TRUE(log.IsFull(1));
  log.Limit(OperationLog::kUnlimited, 4000);
  EXPECT_FALSE(log.IsFull(1000));
  EXPECT_TRUE(log.IsFull(3000));
  log.Trim(2, 1);
  EXPECT_FALSE(log.IsFull(2500));
}

TEST(OperationLogTest, ReusesNumbersOfTruncatedOperations) {
  OperationLog log = Filled(1, 5, true);
  const std::vector<OperationLog::Operation> dropped = log.TruncateAfter(2);
  ASSERT_EQ(dropped.size(), 3);
  EXPECT_EQ(SequenceOf(*dropped.front()), 3);
  EXPECT_EQ(SequenceOf(*dropped.back()), 5);
  EXPECT_EQ(log.last(), 2);
  log.Add(Numbered(3, 1000));
  EXPECT_EQ(log.last(), 3);
  log.Reset(9);
  EXPECT_EQ(log.base(), 9);
  EXPECT_FALSE(log.IsFull(size_t{512} << 20));
}

v1::Trainer At(int64_t applied, int64_t durable) {
  v1::Trainer info;
  info.set_name("t");
  info.set_applied_sequence(applied);
  info.set_durable_sequence(durable);
  return info;
}

// Replies up to 10, operations sent up to 13, log from 5.
constexpr Position kPosition{.acknowledged = 10, .sent = 13, .base = 4, .retains = true};
constexpr auto kNever = [] { return false; };
constexpr auto kRestarted = [] { return true; };

TEST(ResumeAtTest, ResendsTheLastAppliedOperationAfterLostReplies) {
  EXPECT_EQ(*ResumeAt(At(10, 0), kPosition, kNever), 11);
  EXPECT_EQ(*ResumeAt(At(11, 0), kPosition, kNever), 11);
  EXPECT_EQ(*ResumeAt(At(13, 0), kPosition, kNever), 13);
}

TEST(ResumeAtTest, ResumesAfterTheDurableNumberAfterARestart) {
  EXPECT_EQ(*ResumeAt(At(7, 7), kPosition, kRestarted), 8);
  EXPECT_EQ(*ResumeAt(At(4, 4), kPosition, kRestarted), 5);
}

TEST(ResumeAtTest, RejectsUnexpectedNumbers) {
  const absl::Status further = ResumeAt(At(14, 0), kPosition, kRestarted).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(further));
  EXPECT_THAT(std::string(further.message()),
              HasSubstr("expects operation 15, but this client has sent operations up to 13: "
                        "another client operates"));
  for (const auto& info : {At(7, 6), At(7, 8)}) {
    const absl::Status restored = ResumeAt(info, kPosition, kRestarted).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(restored));
    EXPECT_THAT(std::string(restored.message()), HasSubstr("has restored a checkpoint"));
  }
  const absl::Status same_server = ResumeAt(At(7, 7), kPosition, kNever).status();
  EXPECT_THAT(std::string(same_server.message()), HasSubstr("the server has not restarted"));
  const absl::Status too_far = ResumeAt(At(3, 3), kPosition, kRestarted).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(too_far));
  EXPECT_THAT(std::string(too_far.message()), HasSubstr("This client can resend only from 5 "));
}

TEST(ResumeAtTest, ErrorNamesTheMissingCheckpointPolicy) {
  constexpr Position kPlain{.acknowledged = 10, .sent = 10, .base = 10, .retains = false};
  const absl::Status lost = ResumeAt(At(0, 0), kPlain, kRestarted).status();
  EXPECT_THAT(std::string(lost.message()), HasSubstr("has no checkpoint policy"));
}

}  // namespace
}  // namespace braid::client
