#include "server/parallel/packed_weights.h"

#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "c10/core/GradMode.h"
#include "gtest/gtest.h"
#include "server/devices/autocast.h"
#include "tests/fakes/operator_counter.h"
#include "tests/fakes/puppet_replica.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

constexpr char kProduct[] = "mkldnn::_linear_pointwise";

class PackedWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasMKLDNN()) {
      GTEST_SKIP() << "LibTorch was built without oneDNN";
    }
    at::manual_seed(0);
    weight_ = at::randn({512, 768});
    bias_ = at::randn({512});
  }

  // Creates a replica for each of `weights`, which have equal values.
  ReplicaSet Replicas(const std::vector<at::Tensor>& weights) {
    std::vector<std::unique_ptr<Replica>> replicas;
    for (const at::Tensor& weight : weights) {
      replicas.push_back(std::make_unique<PuppetReplica>(
          nullptr, std::vector<Parameter>{{"weight", weight}, {"bias", bias_}}));
    }
    return {std::vector<Worker*>(weights.size(), nullptr), std::move(replicas)};
  }

  at::Tensor weight_;
  at::Tensor bias_;
  const c10::AutoGradMode no_grad_{false};
};

TEST_F(PackedWeightsTest, MatchLinear) {
  const PackedWeights weights(Replicas({weight_}));
  for (const int64_t rows : {5, 7, 33, 256}) {
    const at::Tensor input = at::randn({rows, 768});
    const at::Tensor expected = at::linear(input, weight_, bias_);
    const at::Tensor without = at::linear(input, weight_);
    const OperatorCounter counter(kProduct);
    const PackedWeights::Use use(weights);
    EXPECT_TRUE(at::allclose(at::linear(input, weight_, bias_), expected, 1e-4, 1e-4)) << rows;
    EXPECT_TRUE(at::allclose(at::linear(input, weight_), without, 1e-4, 1e-4)) << rows;
    EXPECT_EQ(counter.count(), 2);
  }
}

TEST_F(PackedWeightsTest, SupportInputsOfAnyRankAndLayout) {
  const PackedWeights weights(Replicas({weight_}));
  const at::Tensor input = at::randn({768, 5, 4}).permute({2, 1, 0});
  const at::Tensor expected = at::linear(input, weight_, bias_);
  const OperatorCounter counter(kProduct);
  const PackedWeights::Use use(weights);
  const at::Tensor result = at::linear(input, weight_, bias_);
  EXPECT_EQ(result.sizes(), at::IntArrayRef({4, 5, 512}));
  EXPECT_TRUE(at::allclose(result, expected, 1e-4, 1e-4));
  EXPECT_EQ(counter.count(), 1);
}

TEST_F(PackedWeightsTest, SupportStridedBias) {
  const PackedWeights weights(Replicas({weight_}));
  const at::Tensor input = at::randn({8, 768});
  const at::Tensor column = at::randn({512, 2}).select(1, 1);
  const at::Tensor expanded = at::randn({1}).expand({512});
  const PackedWeights::Use use(weights);
  for (const at::Tensor& bias : {column, expanded}) {
    const at::Tensor expected = at::matmul(input, weight_.t()) + bias;
    EXPECT_TRUE(at::allclose(at::linear(input, weight_, bias), expected, 1e-4, 1e-4));
  }
}

TEST_F(PackedWeightsTest, AreNotUsedUnderAutocast) {
  const PackedWeights weights(Replicas({weight_}));
  const AutocastGuard autocast(c10::kCPU, c10::kBFloat16);
  const PackedWeights::Use use(weights);
  EXPECT_EQ(at::linear(at::randn({8, 768}), weight_).scalar_type(), at::kBFloat16);
}

TEST_F(PackedWeightsTest, RespectPendingNegations) {
  const at::Tensor negated = at::_neg_view(weight_);
  const PackedWeights weights(Replicas({weight_}));
  const PackedWeights of_negated(Replicas({negated}));
  for (const int64_t rows : {1, 33}) {
    const at::Tensor input = at::randn({rows, 768});
    const at::Tensor expected = at::linear(input, weight_, bias_);
    const at::Tensor turned = at::linear(-input, weight_, -bias_);
    for (const PackedWeights* each : {&weights, &of_negated}) {
      const PackedWeights::Use use(*each);
      const auto is_close = [](const at::Tensor& one, const at::Tensor& other) {
        return at::allclose(one, other, 1e-4, 1e-4);
      };
      EXPECT_TRUE(
          is_close(at::linear(at::_neg_view(input), weight_, at::_neg_view(bias_)), turned));
      EXPECT_TRUE(is_close(at::linear(input, negated, at::_neg_view(bias_)), turned));
      EXPECT_TRUE(is_close(at::linear(at::_neg_view(input), negated, bias_), expected));
      const at::Tensor zeros = at::_efficientzerotensor({rows, 768}, at::kFloat);
      EXPECT_TRUE(is_close(at::linear(zeros, weight_, bias_), bias_.expand({rows, 512})));
    }
  }
}

TEST_F(PackedWeightsTest, AreNotUsedForNestedTensors) {
  const PackedWeights weights(Replicas({weight_}));
  const at::Tensor nested =
      at::_nested_tensor_from_mask(at::randn({4, 6, 768}), at::ones({4, 6}, at::kBool));
  const PackedWeights::Use use(weights);
  EXPECT_TRUE(at::linear(nested, weight_).is_nested());
}

TEST_F(PackedWeightsTest, AreNotUsedForSmallProducts) {
  const at::Tensor small = at::randn({16, 768});
  const PackedWeights weights(Replicas({weight_, small}));
  const at::Tensor input = at::randn({8, 768});
  const OperatorCounter counter(kProduct);
  {
    const PackedWeights::Use use(weights);
    at::linear(input.narrow(0, 0, 1), weight_, bias_);
    at::linear(input.narrow(0, 0, 0), weight_, bias_);
    at::linear(input[0], weight_, bias_);
    at::linear(input, small);
    at::linear(input, at::randn({512, 768}), bias_);
    at::linear(input, weight_.narrow(0, 0, 400));
    at::linear(input.to(at::kDouble), weight_.to(at::kDouble));
    EXPECT_ANY_THROW(at::linear(at::randn({8, 767}), weight_, bias_));
    EXPECT_ANY_THROW(at::linear(input, weight_, at::randn({511})));
  }
  at::linear(input, weight_, bias_);
  EXPECT_EQ(counter.count(), 0);
}

TEST_F(PackedWeightsTest, AreNotUsedAfterChanges) {
  const PackedWeights weights(Replicas({weight_}));
  const at::Tensor input = at::randn({8, 768});
  const PackedWeights::Use use(weights);
  at::linear(input, weight_);
  weight_.mul_(2);
  const OperatorCounter counter(kProduct);
  EXPECT_TRUE(at::allclose(at::linear(input, weight_), at::matmul(input, weight_.t()), 1e-4, 1e-4));
  EXPECT_EQ(counter.count(), 0);
}

TEST_F(PackedWeightsTest, AreNotUsedWithAutograd) {
  const PackedWeights weights(Replicas({weight_}));
  const c10::AutoGradMode grad(true);
  const at::Tensor input = at::randn({8, 768}).requires_grad_(true);
  const PackedWeights::Use use(weights);
  at::linear(input, weight_).sum().backward();
  EXPECT_TRUE(at::allclose(input.grad(), weight_.sum(0).expand({8, 768}), 1e-4, 1e-4));
}

TEST_F(PackedWeightsTest, ArePackedOnceForAllReplicas) {
  const at::Tensor other = weight_.clone();
  const PackedWeights weights(Replicas({weight_, other}));
  std::vector<const at::Tensor*> found(4);
  {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < found.size(); ++t) {
      threads.emplace_back([&, t] { found[t] = weights.Find(t % 2 == 0 ? weight_ : other); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  for (const at::Tensor* each : found) {
    ASSERT_NE(each, nullptr);
    EXPECT_EQ(each, found.front());
  }
}

TEST_F(PackedWeightsTest, InnermostScopeWins) {
  const PackedWeights weights(Replicas({weight_}));
  const PackedWeights none(Replicas({}));
  const at::Tensor input = at::randn({8, 768});
  const OperatorCounter counter(kProduct);
  const PackedWeights::Use outer(weights);
  {
    const PackedWeights::Use inner(none);
    at::linear(input, weight_);
    EXPECT_EQ(counter.count(), 0);
  }
  at::linear(input, weight_);
  EXPECT_EQ(counter.count(), 1);
}

}  // namespace
}  // namespace braid
