#include "server/parallel/overlapped_reduce.h"

#include <memory>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_communicator.h"
#include "tests/fakes/puppet_replica.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Four parameters of 16 floats, 64 bytes, each. The third has another datatype.
PuppetReplica FourParameters() {
  return PuppetReplica(nullptr, {{"a", at::zeros({16})},
                                 {"b", at::zeros({4, 4})},
                                 {"c", at::zeros({8}, at::kDouble)},
                                 {"d", at::zeros({16})}});
}

TEST(GradientBucketsTest, StartsWithTheLastParameters) {
  PuppetReplica replica = FourParameters();
  const FlatParameters flat(replica);
  const std::vector<GradientBucket> buckets = MakeBuckets(flat, {.first = 1, .others = 100});
  ASSERT_EQ(buckets.size(), 3);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(3));
  EXPECT_THAT(buckets[1].parameters, ElementsAre(2));
  EXPECT_THAT(buckets[2].parameters, ElementsAre(1, 0));
  EXPECT_EQ(buckets[0].slice.begin, 32);
  EXPECT_EQ(buckets[0].slice.end, 48);
  EXPECT_EQ(buckets[1].buffer, 1);
  EXPECT_EQ(buckets[2].slice.begin, 0);
  EXPECT_EQ(buckets[2].slice.end, 32);
}

TEST(GradientBucketsTest, HaveNoFrozenParameters) {
  PuppetReplica replica = FourParameters();
  const FlatParameters flat(replica, {true, false, true, false});
  const std::vector<GradientBucket> buckets = MakeBuckets(flat, {.first = 1, .others = 100});
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(3));
  EXPECT_THAT(buckets[1].parameters, ElementsAre(1));
  EXPECT_EQ(buckets[1].slice.begin, 0);
  EXPECT_EQ(buckets[1].slice.end, 16);
}

TEST(GradientBucketsTest, SmallModelHasOneBucketPerDatatype) {
  PuppetReplica replica = FourParameters();
  EXPECT_EQ(MakeBuckets(FlatParameters(replica)).size(), 2);
}

class OverlappedReduceTest : public ::testing::Test {
 protected:
  static constexpr size_t kRanks = 3;

  explicit OverlappedReduceTest(const std::vector<bool>& frozen = {}) {
    for (size_t r = 0; r < kRanks; ++r) {
      replicas_.push_back(FourParameters());
      flat_.push_back(std::make_unique<FlatParameters>(replicas_.back(), frozen));
      flat_.back()->gradients()[0].fill_(100);  // old values, which are overwritten
    }
  }
  OverlappedReduce Make(bool all) {
    std::vector<FlatParameters*> flat;
    for (const auto& parameters : flat_) {
      flat.push_back(parameters.get());
    }
    // Every parameter has its own bucket.
    return OverlappedReduce(communicator_, flat, all, {.first = 1, .others = 1});
  }
  // Gradient of parameter `p` on rank `rank`.
  static double Value(size_t rank, size_t p) { return static_cast<double>(1 + 10 * rank + p); }
  void Add(OverlappedReduce* reduce, size_t rank, size_t p) {
    reduce->Add(rank, p, at::full_like(replicas_[rank].parameters()[p].value, Value(rank, p)));
  }
  // Final gradient of parameter `p` on rank `rank`.
  double Gradient(size_t rank, size_t p) {
    const at::Tensor& gradient = flat_[rank]->gradient(p);
    EXPECT_TRUE(at::equal(gradient, gradient.flatten()[0].expand_as(gradient)));
    return gradient.flatten()[0].item<double>();
  }

  std::vector<PuppetReplica> replicas_;
  std::vector<std::unique_ptr<FlatParameters>> flat_;
  HostCommunicator::Calls calls_;
  HostCommunicator communicator_{kRanks, &calls_};
};

TEST_F(OverlappedReduceTest, StartsSumWhenTheLastRankFinishesTheBucket) {
  OverlappedReduce reduce = Make(/*all=*/false);
  for (size_t r = 0; r < kRanks; ++r) {
    reduce.Begin(r);
  }
  Add(&reduce, 2, 3);
  Add(&reduce, 0, 3);
  EXPECT_THAT(calls_.sums, ElementsAre());
  Add(&reduce, 1, 3);
  EXPECT_THAT(calls_.sums, ElementsAre(0));
  EXPECT_EQ(Gradient(0, 3), Value(0, 3) + Value(1, 3) + Value(2, 3));
}

TEST_F(OverlappedReduceTest, StartsSumsInOneOrder) {
  OverlappedReduce reduce = Make(/*all=*/false);
  for (size_t r = 0; r < kRanks; ++r) {
    reduce.Begin(r);
    Add(&reduce, r, 0);
    Add(&reduce, r, 2);
  }
  EXPECT_THAT(calls_.sums, ElementsAre());
  for (size_t r = 0; r < kRanks; ++r) {
    Add(&reduce, r, 1);
    Add(&reduce, r, 3);
  }
  EXPECT_THAT(calls_.sums, ElementsAre(0, 1, 2, 3));
}

TEST_F(OverlappedReduceTest, MissingGradientsAreZero) {
  for (const bool all : {false, true}) {
    OverlappedReduce reduce = Make(all);
    for (size_t r = 0; r < kRanks; ++r) {
      reduce.Begin(r);
      if (r != 1) {
        Add(&reduce, r, 2);  // rank 1 has no rows; the others are not reached
      }
      EXPECT_THAT(reduce.End(r), IsOk());
    }
    EXPECT_THAT(calls_.sums, ElementsAre(0, 1, 2, 3));
    for (size_t r = 0; r < kRanks; ++r) {
      EXPECT_THAT(reduce.Wait(r), IsOk());
      EXPECT_EQ(flat_[r]->reached()[2], r != 1);
      EXPECT_FALSE(flat_[r]->reached()[0]);
    }
    for (size_t r = 0; r < (all ? kRanks : 1); ++r) {
      EXPECT_EQ(Gradient(r, 2), Value(0, 2) + Value(2, 2));
      EXPECT_EQ(Gradient(r, 0), 0);
    }
    calls_.sums.clear();
  }
}

class OverlappedReduceWithFrozenParametersTest : public OverlappedReduceTest {
 protected:
  OverlappedReduceWithFrozenParametersTest() : OverlappedReduceTest({false, true, false, true}) {}
};

TEST_F(OverlappedReduceWithFrozenParametersTest, DoesNotWaitForThem) {
  OverlappedReduce reduce = Make(/*all=*/false);
  for (size_t r = 0; r < kRanks; ++r) {
    reduce.Begin(r);
    Add(&reduce, r, 2);
  }
  EXPECT_THAT(calls_.sums, ElementsAre(0));
  for (size_t r = 0; r < kRanks; ++r) {
    Add(&reduce, r, 0);
  }
  EXPECT_THAT(calls_.sums, ElementsAre(0, 1));
  EXPECT_EQ(Gradient(0, 0), Value(0, 0) + Value(1, 0) + Value(2, 0));
}

TEST_F(OverlappedReduceTest, ReturnsErrorOfASumAndSkipsTheOthers) {
  OverlappedReduce reduce = Make(/*all=*/false);
  calls_.fail = absl::InternalError("NCCL: unhandled");
  for (size_t r = 0; r < kRanks; ++r) {
    reduce.Begin(r);
    reduce.End(r).IgnoreError();
  }
  EXPECT_THAT(calls_.sums, ElementsAre(0));
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_THAT(reduce.Wait(r), StatusIs(absl::StatusCode::kInternal, HasSubstr("unhandled")));
  }
}

TEST_F(OverlappedReduceTest, SupportsConcurrentRanks) {
  for (int round = 0; round < 50; ++round) {
    OverlappedReduce reduce = Make(/*all=*/true);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        reduce.Begin(r);
        for (size_t i = 0; i < 4; ++i) {
          Add(&reduce, r, (r + i) % 4);
        }
        EXPECT_THAT(reduce.End(r), IsOk());
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (size_t r = 0; r < kRanks; ++r) {
      EXPECT_THAT(reduce.Wait(r), IsOk());
      for (size_t p = 0; p < 4; ++p) {
        EXPECT_EQ(Gradient(r, p), Value(0, p) + Value(1, p) + Value(2, p));
      }
    }
    EXPECT_THAT(calls_.sums, ElementsAre(0, 1, 2, 3));
    calls_.sums.clear();
  }
}

}  // namespace
}  // namespace braid
