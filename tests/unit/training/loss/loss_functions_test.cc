// Compares the losses that LibTorch does not have with their formulas, element by element.
#include "server/training/loss/loss_functions.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

constexpr auto kMeanOf = at::Reduction::Mean;
constexpr auto kSumOf = at::Reduction::Sum;

at::Tensor Waves(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).sin().view(shape);
}
at::Tensor Gradient(const at::Tensor& loss, const at::Tensor& leaf) {
  return torch::autograd::grad({loss}, {leaf})[0];
}
void ExpectNear(const at::Tensor& actual, const at::Tensor& wanted) {
  EXPECT_TRUE(at::allclose(actual, wanted, 1e-12, 1e-13)) << actual << wanted;
}

TEST(FocalLossTest, EqualsCrossEntropyForGammaZero) {
  const at::Tensor target = at::tensor({0, 2, -1, 1, 2, 2, 0, -1}, at::kLong).view({2, 4});
  for (const bool weighted : {false, true}) {
    const std::optional<at::Tensor> weights =
        weighted ? std::optional(at::tensor({0.5, 0.0, 3.0}, at::kDouble)) : std::nullopt;
    for (const int64_t reduction : {int64_t{kMeanOf}, int64_t{kSumOf}}) {
      const at::Tensor output = Waves({2, 3, 4}).requires_grad_(true);
      const at::Tensor leaf = Waves({2, 3, 4}).requires_grad_(true);
      const at::Tensor actual = FocalLoss(output, target, weights, 0, -1, reduction);
      const at::Tensor wanted = at::cross_entropy_loss(leaf, target, weights, reduction, -1);
      ExpectNear(actual, wanted);
      ExpectNear(Gradient(actual, output), Gradient(wanted, leaf));
    }
  }
}

TEST(FocalLossTest, ScalesTheCrossEntropyOfEachRow) {
  const at::Tensor output = Waves({4, 3});
  const at::Tensor target = at::tensor({0, 2, 1, 1}, at::kLong);
  double sum = 0;
  for (int64_t row = 0; row < 4; ++row) {
    const double p = output[row].softmax(0)[target[row].item<int64_t>()].item<double>();
    sum -= std::pow(1 - p, 1.5) * std::log(p);
  }
  EXPECT_NEAR(FocalLoss(output, target, {}, 1.5, -1, kMeanOf).item<double>(), sum / 4, 1e-14);
}

// A probability of 1 has an infinite derivative of (1 − p)^γ for γ below 1.
TEST(FocalLossTest, HasAFiniteGradientForACertainClass) {
  const at::Tensor output = at::tensor({500.0, 0.0}, at::kDouble).view({1, 2}).requires_grad_(true);
  const at::Tensor target = at::zeros({1}, at::kLong);
  const at::Tensor loss = FocalLoss(output, target, {}, 0.5, -1, kMeanOf);
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_LT(Gradient(loss, output).abs().max().item<double>(), 1e-15);
  const at::Tensor masks = at::tensor({1.0, 0.5}, at::kDouble).view({1, 2});
  EXPECT_FALSE(at::isnan(Gradient(SigmoidFocalLoss(output, masks, 0.25, 0.5, kMeanOf), output))
                   .any()
                   .item<bool>());
}

TEST(SigmoidFocalLossTest, IsTheFormulaOfEachElement) {
  const at::Tensor output = Waves({3, 2});
  const at::Tensor target = at::tensor({0.0, 1.0, 0.5, 1.0, 0.0, 0.25}, at::kDouble).view({3, 2});
  for (const double alpha : {0.25, -1.0}) {
    double sum = 0;
    for (int64_t i = 0; i < output.numel(); ++i) {
      const double p = 1 / (1 + std::exp(-output.flatten()[i].item<double>()));
      const double t = target.flatten()[i].item<double>();
      const double entropy = -(t * std::log(p) + (1 - t) * std::log(1 - p));
      const double weight = alpha < 0 ? 1 : alpha * t + (1 - alpha) * (1 - t);
      sum += weight * std::pow(1 - (p * t + (1 - p) * (1 - t)), 2) * entropy;
    }
    EXPECT_NEAR(SigmoidFocalLoss(output, target, alpha, 2, kSumOf).item<double>(), sum, 1e-13);
    EXPECT_NEAR(SigmoidFocalLoss(output, target, alpha, 2, kMeanOf).item<double>(), sum / 6, 1e-13);
  }
}

TEST(DiceLossTest, AveragesMasksOverRowsAndClasses) {
  const at::Tensor output = Waves({2, 3, 2, 2});
  const at::Tensor target = Waves({2, 3, 2, 2}).gt(0).to(at::kDouble);
  double sum = 0;
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t c = 0; c < 3; ++c) {
      const at::Tensor p = output[row][c].sigmoid();
      const at::Tensor t = target[row][c];
      sum += 1 - (2 * (p * t).sum().item<double>() + 0.5) /
                     (p.sum().item<double>() + t.sum().item<double>() + 0.5);
    }
  }
  EXPECT_NEAR(DiceLoss(output, target, 0.5, -1, kMeanOf).item<double>(), sum / 6, 1e-14);
  EXPECT_NEAR(DiceLoss(output, target, 0.5, -1, kSumOf).item<double>(), sum, 1e-14);
}

TEST(DiceLossTest, LeavesOutIgnoredPositionsOfClasses) {
  const at::Tensor output = Waves({1, 3, 5}).requires_grad_(true);
  const at::Tensor target = at::tensor({0, 2, 9, 1, 9}, at::kLong).view({1, 5});
  const at::Tensor loss = DiceLoss(output, target, 1, 9, kMeanOf);
  const at::Tensor counted = at::tensor({0, 1, 3}, at::kLong);
  const at::Tensor kept = output.index_select(2, counted);
  ExpectNear(loss, DiceLoss(kept, target.index_select(1, counted), 1, 9, kMeanOf));
  const at::Tensor gradient = Gradient(loss, output);
  EXPECT_TRUE(gradient.slice(2, 2, 3).eq(0).all().item<bool>());
  EXPECT_FALSE(gradient.slice(2, 0, 2).eq(0).any().item<bool>());
}

TEST(GaussianNllLossTest, IsTheDensityOfEachElement) {
  const at::Tensor mean = Waves({3, 2});
  const at::Tensor target = at::full({3, 2}, 0.25, at::kDouble);
  const at::Tensor variance = Waves({3, 2}).abs().add(0.1);
  const at::Tensor terms = 0.5 * (variance.log() + (mean - target).square() / variance) +
                           0.5 * std::log(2 * std::numbers::pi);
  ExpectNear(GaussianNllLoss(mean, target, variance, true, 1e-6, kMeanOf), terms.mean());
  ExpectNear(GaussianNllLoss(mean, target, variance, false, 1e-6, kSumOf),
             terms.sum() - 3 * std::log(2 * std::numbers::pi));
}

TEST(GaussianNllLossTest, SharesAVarianceOfFewerElements) {
  const at::Tensor mean = Waves({3, 2, 4});
  const at::Tensor target = at::zeros({3, 2, 4}, at::kDouble);
  const at::Tensor variance = Waves({3, 2, 1}).abs().add(0.1);
  const at::Tensor wanted =
      GaussianNllLoss(mean, target, variance.expand({3, 2, 4}), false, 1e-6, kMeanOf);
  ExpectNear(GaussianNllLoss(mean, target, variance, false, 1e-6, kMeanOf), wanted);
  ExpectNear(GaussianNllLoss(mean, target, variance.squeeze(2), false, 1e-6, kMeanOf), wanted);
}

// PyTorch passes the gradient through the clamp.
TEST(GaussianNllLossTest, ClampsTheVarianceButNotItsGradient) {
  const at::Tensor mean = at::ones({2}, at::kDouble);
  const at::Tensor target = at::zeros({2}, at::kDouble);
  const at::Tensor variance = at::tensor({0.0, 4.0}, at::kDouble).requires_grad_(true);
  const at::Tensor loss = GaussianNllLoss(mean, target, variance, false, 0.5, kSumOf);
  EXPECT_NEAR(loss.item<double>(), 0.5 * (std::log(0.5) + 2 + std::log(4) + 0.25), 1e-14);
  ExpectNear(Gradient(loss, variance),
             at::tensor({0.5 * (2 - 4), 0.5 * (0.25 - 1.0 / 16)}, at::kDouble));
  EXPECT_EQ(variance[0].item<double>(), 0);
}

TEST(GaussianNllLossTest, IsNanForANegativeVariance) {
  const at::Tensor ones = at::ones({2}, at::kDouble);
  const at::Tensor variance = at::tensor({-1.0, 1.0}, at::kDouble);
  EXPECT_TRUE(
      std::isnan(GaussianNllLoss(ones, ones, variance, false, 1e-6, kMeanOf).item<double>()));
}

}  // namespace
}  // namespace braid
