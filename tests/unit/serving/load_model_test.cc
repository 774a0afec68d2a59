#include "server/serving/load_model.h"

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// Publishes versions of a model of one input x and one output y.
class SettlePublishedTest : public ::testing::Test {
 protected:
  SettlePublishedTest() {
    config_.inputs[0].dims = {6};
    config_.batching_declared = true;
  }

  ModelConfig Settle(const std::function<at::Tensor(const at::Tensor&)>& forward) {
    const auto run = [&forward](const Tensors& inputs) -> absl::StatusOr<Tensors> {
      return Tensors{forward(inputs[0])};
    };
    const auto settled =
        SettlePublished(config_, 2, ReplicaSet(fleet_.workers(), Puppets(fleet_, run)));
    EXPECT_THAT(settled, IsOk());
    return *settled;
  }

  WorkerFleet fleet_{1};
  ModelConfig config_ = PuppetConfig(64);
};

at::Tensor Same(const at::Tensor& x) { return x.to(at::kFloat); }
at::Tensor Mixed(const at::Tensor& x) { return x - x.mean(); }
at::Tensor Nan(const at::Tensor& x) { return x * std::numeric_limits<float>::quiet_NaN(); }

TEST_F(SettlePublishedTest, MergesRequestsOfAProvenVersion) {
  EXPECT_EQ(Settle(Same).row_independence, RowIndependence::kProven);
}

TEST_F(SettlePublishedTest, EndsTheTimeWithoutMerging) {
  config_.rows_untested = true;
  EXPECT_TRUE(Settle(Same).merges_requests());
  EXPECT_FALSE(Settle(Mixed).merges_requests());
}

TEST_F(SettlePublishedTest, RunsRequestsAloneIfRowsDependOnEachOther) {
  const ModelConfig config = Settle(Mixed);
  EXPECT_EQ(config.row_independence, RowIndependence::kDependent);
  EXPECT_THAT(config.row_independence_reason, HasSubstr("of output 'y'"));
}

TEST_F(SettlePublishedTest, MergesDeclaredBatchesThatWereNeverTested) {
  EXPECT_EQ(Settle(Nan).row_independence, RowIndependence::kUnproven);
}

TEST_F(SettlePublishedTest, RunsRequestsAloneIfAnEarlierProofCannotBeRepeated) {
  config_.row_independence = RowIndependence::kProven;
  EXPECT_EQ(Settle(Nan).row_independence, RowIndependence::kDependent);
}

TEST_F(SettlePublishedTest, RunsRequestsAloneIfNothingIsDeclaredOrProven) {
  config_.batching_declared = false;
  EXPECT_EQ(Settle(Nan).row_independence, RowIndependence::kDependent);
}

TEST_F(SettlePublishedTest, ATestWithBinaryIntegersIsNotAProof) {
  config_.inputs[0].type = DataType::kInt64;
  const ModelConfig config = Settle(Same);
  EXPECT_EQ(config.row_independence, RowIndependence::kUnproven);
  EXPECT_THAT(config.row_independence_reason, HasSubstr("range.<input>"));
  config_.batching_declared = false;
  EXPECT_EQ(Settle(Same).row_independence, RowIndependence::kDependent);
  config_.inputs[0].range = ValueRange{0, 9};
  EXPECT_EQ(Settle(Same).row_independence, RowIndependence::kProven);
}

TEST_F(SettlePublishedTest, SplitsOneNumberForAllRowsOnlyIfBatchesAreDeclared) {
  const auto mean = [](const at::Tensor& x) { return x.mean(); };
  config_.outputs[0].dims = {};
  EXPECT_EQ(Settle(mean).row_independence, RowIndependence::kProven);
  config_.batching_declared = false;
  EXPECT_EQ(Settle(mean).row_independence, RowIndependence::kDependent);
}

TEST_F(SettlePublishedTest, SkipsTheTestIfIndependenceIsAssumed) {
  config_.row_independence = RowIndependence::kAssumed;
  EXPECT_EQ(Settle(Mixed).row_independence, RowIndependence::kAssumed);
}

}  // namespace
}  // namespace braid
