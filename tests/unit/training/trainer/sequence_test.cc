#include "server/training/trainer/sequence.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Fingerprint kThis{1, 2};
constexpr Fingerprint kOther{1, 3};

// Returns the sequence after operation `applied`, whose reply contained `loss`.
Sequence After(int64_t applied, double loss) {
  Sequence sequence;
  OperationResult result;
  result.applied_sequence = applied;
  result.loss = loss;
  sequence.Record(applied, kThis, result, "ann");
  return sequence;
}

TEST(SequenceTest, StartsWithOne) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto recorded, Sequence().Admit(1, kThis));
  EXPECT_FALSE(recorded.has_value());
}

TEST(SequenceTest, AdmitsTheNextNumber) {
  for (const Fingerprint& fingerprint : {kThis, kOther}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto recorded, After(7, 0.5).Admit(8, fingerprint));
    EXPECT_FALSE(recorded.has_value());
  }
}

TEST(SequenceTest, ReturnsTheRecordedReplyForARetry) {
  const Sequence sequence = After(7, 0.5);
  for (int i = 0; i < 2; ++i) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto recorded, sequence.Admit(7, kThis));
    ASSERT_TRUE(recorded.has_value());
    EXPECT_TRUE(recorded->replayed);
    EXPECT_EQ(recorded->applied_sequence, 7);
    EXPECT_EQ(recorded->loss, 0.5);
  }
}

TEST(SequenceTest, AbortsTheLastNumberWithAnotherRequest) {
  EXPECT_THAT(After(7, 0.5).Admit(7, kOther),
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("7"), HasSubstr("expected 8"))));
}

TEST(SequenceTest, RejectsTheNextNumberAfterAnotherClient) {
  for (const char* operated : {"ann", ""}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto recorded, After(7, 0.5).Admit(8, kOther, operated));
    EXPECT_FALSE(recorded.has_value());
  }
  EXPECT_THAT(After(7, 0.5).Admit(8, kOther, "bob"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("sender.last_operator"), HasSubstr("7"))));
  // One that is sent again says whom it followed.
  EXPECT_THAT(After(7, 0.5).Admit(7, kThis, "bob"), IsOk());
  // Whoever has restored a checkpoint of the start.
  Sequence restored;
  restored.Record(0, Fingerprint(), OperationResult(), "bob");
  EXPECT_THAT(restored.Admit(1, kThis, "ann"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("operation 0")));
  EXPECT_THAT(restored.Admit(1, kThis, "bob"), IsOk());
}

TEST(SequenceTest, RejectsNumbersOutOfOrder) {
  for (const int64_t number :
       {int64_t{1}, int64_t{6}, int64_t{9}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(After(7, 0.5).Admit(number, kThis),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("expected 8")))
        << number;
  }
  EXPECT_THAT(Sequence().Admit(2, kThis),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("expected 1")));
}

TEST(SequenceTest, RejectsNumbersBelowOne) {
  for (const int64_t number : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(Sequence().Admit(number, Fingerprint()),
                RefusesField("sequence", HasSubstr("expected 1")))
        << number;
  }
}

}  // namespace
}  // namespace braid
