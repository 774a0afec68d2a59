// Updates against torch::optim's.
#include "server/training/optim/optimizer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_replica.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/rmsprop.h"
#include "torch/optim/sgd.h"

namespace braid {
namespace {

namespace optim = torch::optim;
using Tensors = std::vector<at::Tensor>;

std::vector<bool> All() { return {true, true, true, true}; }

// Three float64 parameters and a float32 one, with a flat optimizer and torch's.
class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() {
    for (const Parameter& parameter : replica_.parameters()) {
      references_.push_back(parameter.value.clone().requires_grad_());
    }
  }

  // "b" is in a group of its own.
  void Start(const OptimizerSpec& spec, const ScheduleSpec& schedule = {},
             const ParameterGroupSpec& group = {}) {
    std::vector<ParameterGroupSpec> specs = {group};
    specs[0].pattern = "b";
    groups_ = std::make_unique<ParameterGroups>(
        *ParameterGroups::Create(std::move(specs), {"a", "b", "c", "d"}));
    schedule_ = std::make_unique<Schedule>(*Schedule::Create(schedule, spec, *groups_));
    optimizer_ = std::make_unique<Optimizer>(spec, *groups_, flat_);
  }

  // torch's, with `options` for all but "b".
  template <typename Reference, typename Options>
  void StartReference(const Options& options, const Options& group) {
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(Tensors{references_[0], references_[2], references_[3]},
                        std::make_unique<Options>(options));
    groups.emplace_back(Tensors{references_[1]}, std::make_unique<Options>(group));
    reference_ = std::make_unique<Reference>(groups, options);
    // Since 2.15 a group inherits the values that are defaults, such as no momentum.
    reference_->param_groups()[1].set_options(std::make_unique<Options>(group));
  }
  template <typename Reference, typename Options>
  void StartReference(const Options& options) {
    StartReference<Reference>(options, options);
  }

  // One update of both with gradients of its own; parameters that are not `reached` get none.
  void Update(const std::vector<bool>& reached, const HyperParameters& changes = {}) {
    ++round_;
    Tensors gradients(reached.size());
    for (size_t p = 0; p < reached.size(); ++p) {
      if (reached[p]) {
        gradients[p] = (references_[p].detach() * round_ + static_cast<double>(p)).cos();
      }
      references_[p].mutable_grad() = gradients[p];
    }
    reference_->step();
    flat_.Accumulate(gradients, /*first=*/true);
    const UpdatePlan plan = optimizer_->Plan(flat_.reached(), *schedule_->Next(changes));
    optimizer_->Prepare(plan);
    optimizer_->Apply(flat_, plan, 0, 1);
    optimizer_->Commit(plan);
    schedule_->Advance(std::nullopt, std::nullopt);
  }

  void ExpectSame() const {
    for (size_t p = 0; p < references_.size(); ++p) {
      const at::Tensor& value = replica_.parameters()[p].value;
      const double tolerance = value.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
      EXPECT_TRUE(at::allclose(value, references_[p], tolerance, tolerance))
          << replica_.parameters()[p].name << "\n"
          << value << references_[p];
    }
  }

  void ExpectTenUpdatesSame() {
    for (int i = 0; i < 10; ++i) {
      Update(All());
    }
    ExpectSame();
  }

  // Updates that reach some of the parameters.
  void ExpectSameWhereReached() {
    for (const std::vector<bool>& reached :
         std::vector<std::vector<bool>>{{true, true, false, false},
                                        {true, false, true, false},
                                        {false, true, false, true},
                                        {true, true, true, true}}) {
      Update(reached);
      ExpectSame();
    }
  }

  PuppetReplica replica_{nullptr,
                         {{"a", at::arange(6, at::kDouble).sin().view({2, 3})},
                          {"b", at::arange(9, at::kDouble).cos()},
                          {"c", at::arange(4, at::kFloat).sin()},
                          {"d", at::full({}, 0.5, at::kDouble)}}};
  FlatParameters flat_{replica_};
  std::unique_ptr<ParameterGroups> groups_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensors references_;
  std::unique_ptr<optim::Optimizer> reference_;
  int round_ = 0;
};

TEST_F(OptimizerTest, PlainSgd) {
  Start(SgdSpec{.lr = 0.1});
  StartReference<optim::SGD>(optim::SGDOptions(0.1));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, SgdWithMomentumDampeningAndWeightDecay) {
  Start(SgdSpec{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05});
  StartReference<optim::SGD>(
      optim::SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.05));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, SgdWithNesterovMomentum) {
  Start(SgdSpec{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true});
  StartReference<optim::SGD>(
      optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.05).nesterov(true));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AdamByDefault) {
  Start(AdamSpec{});
  StartReference<optim::Adam>(optim::AdamOptions(1e-3));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AdamWithAllItsParameters) {
  Start(AdamSpec{
      .lr = 0.02, .beta1 = 0.8, .beta2 = 0.6, .eps = 1e-4, .weight_decay = 0.2, .amsgrad = true});
  StartReference<optim::Adam>(
      optim::AdamOptions(0.02).betas({0.8, 0.6}).eps(1e-4).weight_decay(0.2).amsgrad(true));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AdamWWithAllItsParameters) {
  Start(AdamSpec{.decoupled_weight_decay = true,
                 .lr = 0.02,
                 .beta1 = 0.8,
                 .beta2 = 0.6,
                 .eps = 1e-4,
                 .weight_decay = 0.2,
                 .amsgrad = true});
  StartReference<optim::AdamW>(
      optim::AdamWOptions(0.02).betas({0.8, 0.6}).eps(1e-4).weight_decay(0.2).amsgrad(true));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, RmsPropByDefault) {
  Start(RmsPropSpec{});
  StartReference<optim::RMSprop>(optim::RMSpropOptions(1e-2));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, RmsPropWithAllItsParameters) {
  Start(RmsPropSpec{.lr = 0.02,
                    .alpha = 0.9,
                    .eps = 1e-4,
                    .weight_decay = 0.2,
                    .momentum = 0.7,
                    .centered = true});
  StartReference<optim::RMSprop>(
      optim::RMSpropOptions(0.02).alpha(0.9).eps(1e-4).weight_decay(0.2).momentum(0.7).centered(
          true));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AdagradByDefault) {
  Start(AdagradSpec{});
  StartReference<optim::Adagrad>(optim::AdagradOptions(1e-2));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AdagradWithAllItsParameters) {
  Start(AdagradSpec{.lr = 0.1,
                    .lr_decay = 0.3,
                    .weight_decay = 0.2,
                    .initial_accumulator_value = 0.5,
                    .eps = 1e-4});
  StartReference<optim::Adagrad>(
      optim::AdagradOptions(0.1).lr_decay(0.3).weight_decay(0.2).initial_accumulator_value(0.5).eps(
          1e-4));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AGroupHasItsOwnValues) {
  Start(SgdSpec{.lr = 0.1}, {}, {.lr = 0.3, .weight_decay = 0.2, .momentum = 0.8});
  StartReference<optim::SGD>(optim::SGDOptions(0.1),
                             optim::SGDOptions(0.3).momentum(0.8).weight_decay(0.2));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AGroupWithoutMomentumAmongOthers) {
  Start(RmsPropSpec{.momentum = 0.8}, {}, {.momentum = 0});
  StartReference<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.8),
                                 optim::RMSpropOptions(0.01));
  ExpectTenUpdatesSame();
}

TEST_F(OptimizerTest, AFrozenGroupKeepsItsValues) {
  Start(AdamSpec{.weight_decay = 0.2}, {}, {.frozen = true});
  StartReference<optim::Adam>(optim::AdamOptions(1e-3).weight_decay(0.2), optim::AdamOptions(0.0));
  ExpectTenUpdatesSame();
  EXPECT_THAT(optimizer_->updates(), ::testing::ElementsAre(10, 0, 10, 10));
}

TEST_F(OptimizerTest, ValuesMayChangeFromUpdateToUpdate) {
  Start(SgdSpec{.momentum = 0.5});
  StartReference<optim::SGD>(optim::SGDOptions(0.1).momentum(0.5));
  for (int i = 1; i <= 6; ++i) {
    for (optim::OptimizerParamGroup& group : reference_->param_groups()) {
      auto& options = static_cast<optim::SGDOptions&>(group.options());
      options.lr(0.1 / i).momentum(0.5 + 0.05 * i).weight_decay(0.01 * i);
    }
    Update(All(), {.lr = 0.1 / i, .weight_decay = 0.01 * i, .momentum = 0.5 + 0.05 * i});
  }
  ExpectSame();
}

TEST_F(OptimizerTest, OneCycleTurnsMomentumOn) {
  Start(SgdSpec{}, {{}, OneCycleScheduleSpec{.max_lr = 0.5, .total_steps = 6}});
  StartReference<optim::SGD>(optim::SGDOptions(0.1));
  for (int i = 0; i < 6; ++i) {
    const GroupValues values = schedule_->Next({})->at(0);
    EXPECT_GE(values.momentum, 0.85);
    for (optim::OptimizerParamGroup& group : reference_->param_groups()) {
      static_cast<optim::SGDOptions&>(group.options()).lr(values.lr).momentum(values.momentum);
    }
    Update(All());
  }
  ExpectSame();
}

TEST_F(OptimizerTest, AParameterWithoutGradientKeepsValueAndState) {
  Start(SgdSpec{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.05});
  StartReference<optim::SGD>(
      optim::SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.05));
  ExpectSameWhereReached();
}

TEST_F(OptimizerTest, AdamCountsEachParametersUpdates) {
  Start(AdamSpec{.lr = 0.1});
  StartReference<optim::Adam>(optim::AdamOptions(0.1));
  ExpectSameWhereReached();
  EXPECT_THAT(optimizer_->updates(), ::testing::ElementsAre(3, 3, 2, 2));
}

TEST_F(OptimizerTest, AdagradCountsEachParametersUpdates) {
  Start(AdagradSpec{.lr = 0.1, .lr_decay = 0.5});
  StartReference<optim::Adagrad>(optim::AdagradOptions(0.1).lr_decay(0.5));
  ExpectSameWhereReached();
}

TEST_F(OptimizerTest, ChangesNothingWithoutGradients) {
  Start(AdamSpec{.weight_decay = 1});
  StartReference<optim::Adam>(optim::AdamOptions(1e-3).weight_decay(1));
  const Tensors before = {flat_.values()[0].clone(), flat_.values()[1].clone()};
  Update({false, false, false, false});
  EXPECT_TRUE(at::equal(flat_.values()[0], before[0]));
  EXPECT_TRUE(at::equal(flat_.values()[1], before[1]));
}

TEST_F(OptimizerTest, MergesAdjacentParametersIntoOneRange) {
  Start(AdamSpec{});
  const std::vector<GroupValues> values = *schedule_->Next({});
  const std::vector<FlatSlot>& slots = flat_.slots();
  const UpdatePlan plan = optimizer_->Plan({true, false, true, true}, values);
  ASSERT_EQ(plan.batches.size(), 2);  // one a datatype
  ASSERT_EQ(plan.batches[0].ranges.size(), 2);
  EXPECT_EQ(plan.batches[0].ranges[0].end, slots[0].padded);
  EXPECT_EQ(plan.batches[0].ranges[1].begin, slots[3].offset);
  EXPECT_EQ(plan.batches[1].ranges.size(), 1);

  Start(AdamSpec{}, {}, {});  // "b" is a group, of the same values, that ends a batch
  EXPECT_EQ(optimizer_->Plan({true, true, false, true}, values).batches.size(), 2);
}

}  // namespace
}  // namespace braid
