// Both ways of synchronizing the replicas give the same bits.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

// An optimizer with clipping and groups.
TrainerSpec SpecOf(SyncMode sync) {
  TrainerSpec spec =
      TrainedSpec(AdamSpec{.decoupled_weight_decay = true, .lr = 0.05, .weight_decay = 0.01});
  spec.sync = sync;
  spec.clipping.max_norm = 0.3;
  spec.clipping.max_value = 0.1;
  spec.groups = {{.pattern = "b", .weight_decay = 0}};
  return spec;
}

// After 30 steps on batches of changing sizes, some of them accumulated.
State After30(int workers, const TrainerSpec& spec) {
  TrainedModule trained(TwoStages(), workers, spec);
  EXPECT_THAT(trained.status(), IsOk());
  for (int64_t step = 0; step < 30; ++step) {
    const int64_t rows = 1 + 7 * step % 20;
    if (step % 4 == 3) {
      EXPECT_THAT(trained.ForwardBackward(Inputs(rows + 2), Classes(rows + 2)), IsOk());
    }
    EXPECT_THAT(trained.Step(Inputs(rows), Classes(rows)), IsOk());
  }
  return trained.state();
}

class SyncTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, SyncTest, ::testing::Values(1, 2, 3, 4));

TEST_P(SyncTest, AllReduceIsReduceAndBroadcast) {
  ExpectSameState(After30(GetParam(), SpecOf(SyncMode::kAllReduce)),
                  After30(GetParam(), SpecOf(SyncMode::kReduceBroadcast)), 0);
}

// 30 updates are more than it measures: it has gone from one way to the other, and settled.
TEST_P(SyncTest, AutoChangesNoBits) {
  ExpectSameState(After30(GetParam(), SpecOf(SyncMode::kAuto)),
                  After30(GetParam(), SpecOf(SyncMode::kReduceBroadcast)), 0);
}

TEST_P(SyncTest, ManyStepsStayWithOneWorkers) {
  ExpectSameState(After30(GetParam(), SpecOf(SyncMode::kAuto)),
                  After30(1, SpecOf(SyncMode::kReduceBroadcast)), 1e-9);
}

TEST(SyncStagesTest, StagesDoNotDiffer) {
  std::vector<State> states;
  for (const SyncMode sync : {SyncMode::kReduceBroadcast, SyncMode::kAllReduce, SyncMode::kAuto}) {
    TrainerSpec spec = SpecOf(sync);
    spec.stages = {{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:2", "cpu:1", "cpu:0"}}};
    states.push_back(After30(3, spec));
  }
  ExpectSameState(states[1], states[0], 0);
  ExpectSameState(states[2], states[0], 0);
}

// Every replica has the primary's parameters afterwards: what each makes of the same rows is equal.
TEST_P(SyncTest, EveryReplicaHasTheParameters) {
  for (const SyncMode sync : {SyncMode::kReduceBroadcast, SyncMode::kAllReduce}) {
    TrainedModule trained(TwoStages(), GetParam(), SpecOf(sync));
    for (const int64_t rows : {20, 1, 2}) {
      ASSERT_THAT(trained.Step(Inputs(rows), Classes(rows)), IsOk());
      const at::Tensor same = Inputs(1).repeat({int64_t{4} * GetParam(), 1});
      BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Forward(same, Mode::kEval));
      const at::Tensor y = View(result.outputs[0]);
      EXPECT_TRUE(at::equal(y, y.narrow(0, 0, 1).expand_as(y)));
    }
  }
}

}  // namespace
}  // namespace braid
