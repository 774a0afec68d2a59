#include "server/training/step/clipping.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_replica.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Gradients of two datatypes.
class ClippingTest : public ::testing::Test {
 protected:
  ClippingTest() { flat_.Accumulate(gradients_, /*first=*/true); }

  double Norm(double norm_type, size_t parts) const {
    std::vector<double> partials;
    for (size_t part = 0; part < parts; ++part) {
      partials.push_back(PartialNorm(flat_, norm_type, part, parts).item<double>());
    }
    return CombineNorms(partials, norm_type);
  }

  void Clip(double factor, std::optional<double> max_value, size_t parts) const {
    for (size_t part = 0; part < parts; ++part) {
      ScaleAndClip(flat_, factor, max_value, part, parts);
    }
  }

  void ExpectGradients(const Tensors& expected) const {
    for (size_t p = 0; p < expected.size(); ++p) {
      EXPECT_TRUE(at::allclose(flat_.gradient(p), expected[p], 1e-6, 0)) << p;
    }
  }

  const Tensors gradients_ = {at::arange(1000, at::kDouble).sin().view({10, 100}),
                              at::arange(333, at::kFloat).cos() * 3,
                              at::full({}, -2.5, at::kDouble)};
  PuppetReplica replica_{nullptr,
                         {{"a", at::zeros({10, 100}, at::kDouble)},
                          {"b", at::zeros({333}, at::kFloat)},
                          {"c", at::zeros({}, at::kDouble)}}};
  FlatParameters flat_{replica_};
};

TEST_F(ClippingTest, TheNormIsThatOfAllGradientsTogether) {
  const at::Tensor all =
      at::cat({gradients_[0].flatten(), gradients_[1].to(at::kDouble), gradients_[2].view({1})});
  for (const double norm_type : {1.0, 2.0, 3.5, kInf}) {
    const double expected = at::linalg_vector_norm(all, norm_type).item<double>();
    for (const size_t parts : {1, 2, 5}) {
      EXPECT_NEAR(Norm(norm_type, parts) / expected, 1, 1e-14) << norm_type;
    }
  }
}

TEST_F(ClippingTest, MorePartsThanElementsAreFine) {
  EXPECT_NEAR(Norm(2, 1000), Norm(2, 1), 1e-12);
}

TEST_F(ClippingTest, WhatIsNoNumberOrInfiniteShowsInTheNorm) {
  for (const double norm_type : {1.0, 2.0, 3.0, kInf}) {
    flat_.gradient(1)[100] = kInf;
    EXPECT_EQ(Norm(norm_type, 3), kInf);
    flat_.gradient(1)[100] = kNan;
    EXPECT_TRUE(std::isnan(Norm(norm_type, 3))) << norm_type;
  }
}

TEST_F(ClippingTest, ParametersThatWereNotReachedDoNotCount) {
  flat_.Accumulate({at::Tensor(), at::Tensor(), gradients_[2]}, /*first=*/true);
  EXPECT_EQ(Norm(2, 2), 2.5);
}

TEST_F(ClippingTest, HalfPrecisionAddsUpInFloat64) {
  PuppetReplica replica(nullptr, {{"a", at::zeros({70000}, at::kHalf)}});
  FlatParameters flat(replica);
  flat.Accumulate({at::full({70000}, 2, at::kHalf)}, /*first=*/true);
  EXPECT_EQ(PartialNorm(flat, 1, 0, 1).item<double>(), 140000);  // more than float16 holds
}

TEST_F(ClippingTest, ScalesThenCutsOff) {
  Clip(0.5, 1.2, 3);
  Tensors expected;
  for (const at::Tensor& gradient : gradients_) {
    expected.push_back((gradient * 0.5).clamp(-1.2, 1.2));
  }
  ExpectGradients(expected);
}

TEST_F(ClippingTest, ScalesAlone) {
  Clip(0.25, std::nullopt, 2);
  ExpectGradients({gradients_[0] / 4, gradients_[1] / 4, gradients_[2] / 4});
}

TEST_F(ClippingTest, WithFactor1AndALimitThatNoneReachesNothingChanges) {
  Clip(1, 1e300, 2);  // more than float32 holds
  for (size_t p = 0; p < gradients_.size(); ++p) {
    EXPECT_TRUE(at::equal(flat_.gradient(p), gradients_[p]));
  }
}

TEST(ClipFactorTest, NeverMakesGradientsLarger) {
  EXPECT_EQ(ClipFactor(0.5, 1), 1);
  EXPECT_EQ(ClipFactor(0, 1), 1);
  EXPECT_EQ(ClipFactor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(ClipFactor(4, kInf), 1);
  EXPECT_TRUE(std::isnan(ClipFactor(kNan, 1)));
}

TEST(CheckClippingTest, FieldsOutOfRange) {
  EXPECT_THAT(CheckClipping({}), IsOk());
  EXPECT_THAT(CheckClipping({.max_norm = 1, .norm_type = kInf, .max_value = 0.1}), IsOk());
  for (const double bad : {0.0, -1.0, kNan}) {
    EXPECT_THAT(CheckClipping({.max_norm = bad}),
                RefusesField("clipping.max_norm", HasSubstr("above 0")));
    EXPECT_THAT(CheckClipping({.max_value = bad}),
                RefusesField("clipping.max_value", HasSubstr("above 0")));
    EXPECT_THAT(CheckClipping({.norm_type = bad}),
                RefusesField("clipping.norm_type", HasSubstr("at least 1")));
  }
}

}  // namespace
}  // namespace braid
