#include "server/training/optimizer.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_replica.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

// One parameter as torch.optim's formulas update it.
struct Reference {
  at::Tensor value;
  at::Tensor first;   // momentum, or the first moment
  at::Tensor second;  // the second moment
  int updates = 0;

  void Update(const at::Tensor& raw, const SgdSpec& spec) {
    at::Tensor gradient = raw + spec.weight_decay * value;
    if (spec.momentum != 0) {
      first =
          updates == 0 ? gradient.clone() : spec.momentum * first + (1 - spec.dampening) * gradient;
      gradient = spec.nesterov ? gradient + spec.momentum * first : first;
    }
    value = value - spec.lr * gradient;
    ++updates;
  }

  void Update(const at::Tensor& gradient, const AdamWSpec& spec) {
    if (updates == 0) {
      first = at::zeros_like(value);
      second = at::zeros_like(value);
    }
    ++updates;
    value = value * (1 - spec.lr * spec.weight_decay);
    first = spec.beta1 * first + (1 - spec.beta1) * gradient;
    second = spec.beta2 * second + (1 - spec.beta2) * gradient * gradient;
    const at::Tensor mean = first / (1 - std::pow(spec.beta1, updates));
    const at::Tensor square = second / (1 - std::pow(spec.beta2, updates));
    value = value - spec.lr * mean / (square.sqrt() + spec.eps);
  }
};

// Three float64 parameters and a float32 one, with a flat optimizer and the reference.
class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() {
    for (const Parameter& parameter : replica_.parameters()) {
      references_.push_back({parameter.value.clone(), {}, {}, 0});
    }
  }

  // One update with gradients of its own; parameters that are not `reached` get none.
  template <typename Spec>
  void Update(const Spec& spec, const std::vector<bool>& reached) {
    ++round_;
    Tensors gradients(reached.size());
    for (size_t p = 0; p < reached.size(); ++p) {
      if (reached[p]) {
        gradients[p] = (references_[p].value * round_ + static_cast<double>(p)).cos();
        references_[p].Update(gradients[p], spec);
      }
    }
    flat_.Accumulate(gradients, /*first=*/true);
    optimizer_.Update(flat_, flat_.reached(), spec);
  }

  void ExpectSame() const {
    for (size_t p = 0; p < references_.size(); ++p) {
      const at::Tensor& value = replica_.parameters()[p].value;
      const double tolerance = value.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
      EXPECT_TRUE(at::allclose(value, references_[p].value, tolerance, tolerance))
          << replica_.parameters()[p].name << "\n"
          << value << references_[p].value;
    }
  }

  template <typename Spec>
  void ExpectTenUpdatesSame(const Spec& spec) {
    for (int i = 0; i < 10; ++i) {
      Update(spec, {true, true, true, true});
    }
    ExpectSame();
  }

  PuppetReplica replica_{nullptr,
                         {{"a", at::arange(6, at::kDouble).sin().view({2, 3})},
                          {"b", at::arange(9, at::kDouble).cos()},
                          {"c", at::arange(4, at::kFloat).sin()},
                          {"d", at::full({}, 0.5, at::kDouble)}}};
  FlatParameters flat_{replica_};
  Optimizer optimizer_{flat_};
  std::vector<Reference> references_;
  int round_ = 0;
};

TEST_F(OptimizerTest, PlainSgd) { ExpectTenUpdatesSame(SgdSpec{.lr = 0.1}); }

TEST_F(OptimizerTest, SgdWithMomentum) {
  ExpectTenUpdatesSame(SgdSpec{.lr = 0.1, .momentum = 0.9});
}

TEST_F(OptimizerTest, SgdWithMomentumDampeningAndWeightDecay) {
  ExpectTenUpdatesSame(SgdSpec{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05});
}

TEST_F(OptimizerTest, SgdWithNesterovMomentum) {
  ExpectTenUpdatesSame(SgdSpec{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true});
}

TEST_F(OptimizerTest, AdamWByDefault) { ExpectTenUpdatesSame(AdamWSpec{}); }

TEST_F(OptimizerTest, AdamWWithAllItsParameters) {
  ExpectTenUpdatesSame(
      AdamWSpec{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.2});
}

TEST_F(OptimizerTest, HyperParametersMayChangeFromUpdateToUpdate) {
  for (int i = 1; i <= 6; ++i) {
    Update(SgdSpec{.lr = 0.1 / i, .momentum = 0.5 + 0.05 * i, .weight_decay = 0.01 * i},
           {true, true, true, true});
  }
  ExpectSame();
}

TEST_F(OptimizerTest, AParameterThatIsNotReachedKeepsValueAndState) {
  for (const std::vector<bool>& reached :
       std::vector<std::vector<bool>>{{true, true, false, false},
                                      {true, false, true, false},
                                      {false, true, false, true},
                                      {true, true, true, true}}) {
    Update(SgdSpec{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05}, reached);
    ExpectSame();
  }
}

TEST_F(OptimizerTest, AdamWCountsEachParametersUpdates) {
  for (const std::vector<bool>& reached :
       std::vector<std::vector<bool>>{{false, true, false, true},
                                      {false, true, true, false},
                                      {true, false, false, false},
                                      {true, true, true, true}}) {
    Update(AdamWSpec{.lr = 0.1}, reached);
    ExpectSame();
  }
}

TEST_F(OptimizerTest, WithNothingReachedNothingChanges) {
  const Tensors before = {flat_.values()[0].clone(), flat_.values()[1].clone()};
  Update(AdamWSpec{.weight_decay = 1}, {false, false, false, false});
  EXPECT_TRUE(at::equal(flat_.values()[0], before[0]));
  EXPECT_TRUE(at::equal(flat_.values()[1], before[1]));
}

}  // namespace
}  // namespace braid
