// Parts of an update, and an optimizer's state, for every optimizer.
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/optim/optimizer.h"
#include "tests/fakes/puppet_replica.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;
using StateView = Optimizer::StateView;
using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  OptimizerSpec spec;
  std::vector<std::string> state;  // of each parameter
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

std::vector<Case> Cases() {
  return {
      {"Sgd", SgdSpec{.lr = 0.1}, {}},
      {"SgdMomentum",
       SgdSpec{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1},
       {"momentum_buffer"}},
      {"Adam", AdamSpec{.lr = 0.1, .weight_decay = 0.1}, {"exp_avg", "exp_avg_sq"}},
      {"AdamWAmsgrad",
       AdamSpec{.decoupled_weight_decay = true, .lr = 0.1, .weight_decay = 0.1, .amsgrad = true},
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"RmsProp", RmsPropSpec{.lr = 0.1, .weight_decay = 0.1}, {"square_avg"}},
      {"RmsPropCenteredMomentum",
       RmsPropSpec{.lr = 0.1, .alpha = 0.9, .momentum = 0.9, .centered = true},
       {"square_avg", "grad_avg", "momentum_buffer"}},
      {"Adagrad",
       AdagradSpec{.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.3},
       {"sum"}},
  };
}

const std::vector<std::string>& Names() {
  static const auto& names = *new std::vector<std::string>{"a", "b.weight", "c", "d", "frozen"};
  return names;
}

PuppetReplica MixedReplica() {
  return PuppetReplica(nullptr, {{"a", at::arange(777, at::kFloat).sin().view({7, 111})},
                                 {"b.weight", at::arange(5000, at::kDouble).cos()},
                                 {"c", at::arange(2003, at::kFloat).cos()},
                                 {"d", at::full({}, 0.5, at::kFloat)},
                                 {"frozen", at::full({3}, 0.5, at::kFloat)}});
}

// A model in training; "d" is reached now and then only.
class Training {
 public:
  explicit Training(const OptimizerSpec& spec, const ScheduleSpec& schedule = {})
      : schedule_(*Schedule::Create(schedule, spec, groups_)),
        optimizer_(std::make_unique<Optimizer>(spec, groups_, flat_)) {}

  void Update(int round, size_t parts = 1) {
    Tensors gradients;
    for (const Parameter& parameter : replica_.parameters()) {
      gradients.push_back((parameter.value * round + 0.5).cos());
    }
    if (round % 3 != 0) {
      gradients[3] = at::Tensor();
    }
    flat_.Accumulate(gradients, /*first=*/true);
    const UpdatePlan plan = optimizer_->Plan(flat_.reached(), *schedule_.Next({}));
    optimizer_->Prepare(plan);
    std::vector<std::jthread> threads;
    for (size_t part = 0; part < parts; ++part) {
      threads.emplace_back([&, part] { optimizer_->Apply(flat_, plan, part, parts); });
    }
    threads.clear();
    optimizer_->Commit(plan);
  }

  std::vector<StateView> State() const { return optimizer_->state(replica_.parameters()); }
  // Copies: a state's views go on with the optimizer.
  std::vector<StateView> StateCopy() const {
    std::vector<StateView> copy = State();
    for (StateView& view : copy) {
      view.value = view.value.clone();
    }
    return copy;
  }
  absl::Status Load(const std::vector<StateView>& state, const std::vector<int64_t>& updates) {
    return optimizer_->Load(replica_.parameters(), state, updates);
  }
  void TakeValues(const Training& other) {
    for (size_t b = 0; b < flat_.values().size(); ++b) {
      flat_.values()[b].copy_(other.flat_.values()[b]);
    }
  }

  FlatParameters& flat() { return flat_; }
  Optimizer& optimizer() { return *optimizer_; }

 private:
  const ParameterGroups groups_ =
      *ParameterGroups::Create({{.pattern = "frozen", .frozen = true}}, Names());
  PuppetReplica replica_ = MixedReplica();
  FlatParameters flat_{replica_};
  Schedule schedule_;
  std::unique_ptr<Optimizer> optimizer_;
};

void ExpectSameValues(Training& one, Training& other) {
  for (size_t b = 0; b < one.flat().values().size(); ++b) {
    EXPECT_TRUE(at::equal(one.flat().values()[b], other.flat().values()[b])) << b;
  }
}

class EveryOptimizerTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizerTest, ::testing::ValuesIn(Cases()),
                         [](const auto& each) { return each.param.name; });

TEST_P(EveryOptimizerTest, PartsGiveTheBitsOfTheWhole) {
  for (const size_t parts : {2, 3, 16}) {
    Training whole(GetParam().spec);
    Training split(GetParam().spec);
    for (int round = 1; round <= 4; ++round) {
      whole.Update(round);
      split.Update(round, parts);
    }
    ExpectSameValues(whole, split);
  }
}

TEST_P(EveryOptimizerTest, StateIsNamedAndShapedAsTheParameters) {
  Training training(GetParam().spec);
  EXPECT_THAT(training.State(), IsEmpty());
  training.Update(1);
  std::vector<std::string> names;
  for (const StateView& view : training.State()) {
    names.push_back(view.name);
    const int64_t dims = view.name.starts_with("a.") ? 2 : view.name.starts_with("d.") ? 0 : 1;
    EXPECT_EQ(view.value.dim(), dims) << view.name;
  }
  std::vector<std::string> expected;
  for (const std::string& state : GetParam().state) {
    for (const char* parameter : {"a.", "b.weight.", "c.", "d."}) {  // not of "frozen"
      expected.push_back(parameter + state);
    }
  }
  EXPECT_THAT(names, UnorderedElementsAreArray(expected));
  EXPECT_THAT(training.optimizer().updates(), ElementsAre(1, 1, 1, 0, 0));
}

TEST_P(EveryOptimizerTest, ContinuesFromItsStateBitForBit) {
  Training first(GetParam().spec);
  first.Update(1);
  first.Update(2);
  Training second(GetParam().spec);
  second.Update(3);  // what it had is overwritten
  second.TakeValues(first);
  ASSERT_THAT(second.Load(first.StateCopy(), first.optimizer().updates()), IsOk());
  for (int round = 3; round <= 6; ++round) {
    first.Update(round);
    second.Update(round);
  }
  ExpectSameValues(first, second);
}

TEST_P(EveryOptimizerTest, AcceptsMissingStateOfAParameterWithoutUpdates) {
  Training first(GetParam().spec);
  first.Update(1);
  std::vector<StateView> state = first.StateCopy();
  std::erase_if(state, [](const StateView& view) { return view.name.starts_with("d."); });
  Training second(GetParam().spec);
  second.Update(3);
  second.TakeValues(first);
  ASSERT_THAT(second.Load(state, first.optimizer().updates()), IsOk());
  first.Update(3);
  second.Update(3);
  ExpectSameValues(first, second);
}

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    source_.Update(1);
    state_ = source_.StateCopy();
    target_.Update(2);
    before_ = target_.StateCopy();
  }

  void ExpectRefused(const std::vector<int64_t>& updates, absl::StatusCode code,
                     const std::string& message) {
    EXPECT_THAT(target_.Load(state_, updates), StatusIs(code, HasSubstr(message)));
    const std::vector<StateView> after = target_.State();
    ASSERT_EQ(after.size(), before_.size());
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(at::equal(after[i].value, before_[i].value));
    }
  }

  Training source_{AdamSpec{}};
  Training target_{AdamSpec{}};
  std::vector<StateView> state_;
  std::vector<StateView> before_;
};

TEST_F(LoadTest, AcceptsStateInAnyOrder) {
  std::swap(state_.front(), state_.back());
  ASSERT_THAT(target_.Load(state_, {1, 1, 1, 0, 0}), IsOk());
  EXPECT_TRUE(at::equal(target_.State()[0].value, source_.State()[0].value));
}

TEST_F(LoadTest, RejectsMissingState) {
  const std::string name = state_.front().name;
  state_.erase(state_.begin());
  ExpectRefused({1, 1, 1, 0, 0}, absl::StatusCode::kDataLoss, name + " is missing");
}

TEST_F(LoadTest, RejectsMissingStateOfAnUpdatedParameter) {
  std::erase_if(state_, [](const StateView& view) { return view.name.starts_with("d."); });
  ExpectRefused({1, 1, 1, 1, 0}, absl::StatusCode::kDataLoss, "d.exp_avg is missing");
}

TEST_F(LoadTest, RejectsDuplicateState) {
  state_.push_back(state_.front());
  ExpectRefused({1, 1, 1, 0, 0}, absl::StatusCode::kDataLoss, "twice");
}

TEST_F(LoadTest, RejectsAnotherOptimizersState) {
  state_[0].name = "a.momentum_buffer";
  ExpectRefused({1, 1, 1, 0, 0}, absl::StatusCode::kFailedPrecondition,
                "'a.momentum_buffer' does not match this model and optimizer Adam");
}

TEST_F(LoadTest, RejectsAnotherShapeOrDatatype) {
  const at::Tensor value = state_[0].value;
  state_[0].value = value.flatten();
  ExpectRefused({1, 1, 1, 0, 0}, absl::StatusCode::kFailedPrecondition, "another shape");
  state_[0].value = value.to(at::kDouble);
  ExpectRefused({1, 1, 1, 0, 0}, absl::StatusCode::kFailedPrecondition, "datatype");
}

TEST_F(LoadTest, RejectsInvalidUpdateCounts) {
  ExpectRefused({1, 1, 1}, absl::StatusCode::kFailedPrecondition, "of 3 parameters for 5");
  ExpectRefused({1, 1, 1, -1, 0}, absl::StatusCode::kDataLoss, "counts");
}

TEST_F(LoadTest, HasTheInitialStateWithoutUpdates) {
  Training fresh(AdagradSpec{.lr = 0.1, .initial_accumulator_value = 0.5});
  Training used(AdagradSpec{.lr = 0.1, .initial_accumulator_value = 0.5});
  used.Update(3);
  ASSERT_THAT(used.Load({}, {0, 0, 0, 0, 0}), IsOk());
  used.TakeValues(fresh);
  fresh.Update(3);
  used.Update(3);
  ExpectSameValues(fresh, used);
}

TEST_F(LoadTest, MomentumThatAScheduleTurnedOn) {
  const ScheduleSpec cycle = {{}, OneCycleScheduleSpec{.max_lr = 0.1, .total_steps = 100}};
  Training first(SgdSpec{}, cycle);
  Training second(SgdSpec{}, cycle);
  first.Update(1);
  EXPECT_EQ(first.State().size(), 4);
  second.TakeValues(first);
  ASSERT_THAT(second.Load(first.StateCopy(), first.optimizer().updates()), IsOk());
  first.Update(3);
  second.Update(3);
  ExpectSameValues(first, second);
}

}  // namespace
}  // namespace braid
