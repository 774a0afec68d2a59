#include "server/training/step/placement.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "server/training/step/rank_map.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

// Module "first", "second" on three workers.
class PlacementTest : public ::testing::Test {
 protected:
  absl::StatusOr<Placement> PlaceOn(std::vector<StageSpec> stages, std::string output = "") {
    spec_.stages = std::move(stages);
    spec_.output_device = std::move(output);
    return Place(served_, &spec_);
  }

  const WorkerFleet fleet_{3};
  const ReplicaSet served_{fleet_.workers(), MakeReplicas(TwoStages(), TrainedConfig(), 3)};
  TrainerSpec spec_;
};

TEST_F(PlacementTest, IsTheWholeModelOnAllDevicesUnlessAskedFor) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Placement placement, PlaceOn({}));
  ASSERT_EQ(placement.stages.size(), 1);
  EXPECT_EQ(placement.stages[0].path, "");
  EXPECT_EQ(placement.stages[0].replicas.workers(), fleet_.workers());
  EXPECT_EQ(placement.output_worker, &fleet_.worker(0));
  ASSERT_EQ(spec_.stages.size(), 1);  // filled in
  EXPECT_THAT(spec_.stages[0].devices, ElementsAre("cpu:0", "cpu:1", "cpu:2"));
  EXPECT_EQ(spec_.output_device, "cpu:0");
}

TEST_F(PlacementTest, TheLossIsTheLastStagesPrimarysUnlessAskedFor) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Placement last,
                             PlaceOn({{"first", {"cpu:0"}}, {"second", {"cpu:2", "cpu:1"}}}));
  EXPECT_EQ(last.output_worker, &fleet_.worker(2));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Placement other,
      PlaceOn({{"first", {"cpu:0"}}, {"second", {"cpu:2", "cpu:1"}}}, "cpu:0"));
  EXPECT_EQ(other.output_worker, &fleet_.worker(0));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Placement host,
      PlaceOn({{"first", {"cpu:0"}}, {"second", {"cpu:2", "cpu:1"}}}, "host"));
  EXPECT_EQ(host.output_worker, &fleet_.worker(2));
  EXPECT_TRUE(host.output_device.is_cpu());
  EXPECT_EQ(spec_.output_device, "host");
}

TEST_F(PlacementTest, StepsRunOnWorkersOfTheSameNames) {
  const WorkerFleet background(3);
  spec_.stages = {{"first", {"cpu:0"}}, {"second", {"cpu:2", "cpu:1"}}};
  BRAID_ASSERT_OK_AND_ASSIGN(const Placement placement,
                             Place(served_, &spec_, background.workers()));
  EXPECT_THAT(placement.stages[1].replicas.workers(),
              ElementsAre(&background.worker(2), &background.worker(1)));
  EXPECT_EQ(placement.output_worker, &background.worker(2));
}

TEST_F(PlacementTest, ReplicasShareTheParametersOfTheirPart) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Placement placement,
                             PlaceOn({{"first", {"cpu:1"}}, {"second", {"cpu:2"}}}));
  const Replica& second = placement.stages[1].replicas.replica(0);
  ASSERT_EQ(second.parameters().size(), 2);
  EXPECT_EQ(second.parameters()[0].value.sizes(), at::IntArrayRef({5, 4}));
  const at::Tensor& served = served_.replica(2).parameters()[2].value;
  EXPECT_TRUE(second.parameters()[0].value.is_alias_of(served));
}

TEST_F(PlacementTest, DevicesThatTheServerHasNotAreRefused) {
  EXPECT_THAT(PlaceOn({{"first", {"cpu:0"}}, {"second", {"cpu:1", "cuda:7"}}}),
              RefusesField("stages[1].devices[1]",
                           AllOf(HasSubstr("'cuda:7'"), HasSubstr("cpu:0, cpu:1, cpu:2"))));
  EXPECT_THAT(PlaceOn({{"", {"cpu:1", "cpu:1"}}}),
              RefusesField("stages[0].devices[1]", HasSubstr("twice")));
  EXPECT_THAT(PlaceOn({}, "cuda:0"), RefusesField("output_device", HasSubstr("'cuda:0'")));
}

TEST_F(PlacementTest, PathsThatAreNoPartAreRefused) {
  EXPECT_THAT(PlaceOn({{"first", {}}, {"third", {}}}),
              RefusesField("stages[1].path", AllOf(HasSubstr("'third'"), HasSubstr("'second'"))));
  EXPECT_THAT(PlaceOn({{"first", {}}, {"", {}}}),
              RefusesField("stages[1].path", HasSubstr("empty")));
}

TEST_F(PlacementTest, EveryParameterIsInOneStage) {
  EXPECT_THAT(PlaceOn({{"first", {}}}),
              RefusesField("stages", AllOf(HasSubstr("'second.w'"), HasSubstr("0 stages"))));
  EXPECT_THAT(PlaceOn({{"first", {}}, {"second", {}}, {"second", {}}}),
              RefusesField("stages", AllOf(HasSubstr("'second.w'"), HasSubstr("2 stages"))));
}

TEST(TiedPlacementTest, OneTensorIsInOneStage) {
  torch::jit::Module first = Part("First", 3, 5);
  first.define("def forward(self, x):\n  return x @ self.w + self.b\n");
  torch::jit::Module second = Part("Second", 5, 4);
  second.register_parameter("tied", first.attr("b").toTensor(), /*is_buffer=*/false);
  second.define("def forward(self, h):\n  return (h + self.tied) @ self.w + self.b\n");
  const torch::jit::Module module = Chain({{"first", first}, {"second", second}});
  const WorkerFleet fleet(2);
  const ReplicaSet served(fleet.workers(), MakeReplicas(module, TrainedConfig(), 2));
  TrainerSpec spec;
  spec.stages = {{"first", {"cpu:0"}}, {"second", {"cpu:1"}}};
  EXPECT_THAT(Place(served, &spec),
              RefusesField("stages", AllOf(HasSubstr("'first.b'"), HasSubstr("'second.tied'"))));
  spec.stages = {{"", {"cpu:1"}}};
  EXPECT_THAT(Place(served, &spec), IsOk());
}

TEST_F(PlacementTest, ARosterHasEachWorkerOnce) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      PlaceOn({{"first", {"cpu:1", "cpu:0"}}, {"second", {"cpu:0"}}}, "cpu:2"));
  const RankMap ranks(placement);
  EXPECT_THAT(ranks.workers, ElementsAre(&fleet_.worker(1), &fleet_.worker(0), &fleet_.worker(2)));
  EXPECT_THAT(ranks.rank, ElementsAre(ElementsAre(0, 1), ElementsAre(1)));
  EXPECT_THAT(ranks.replica[0], ElementsAre(Optional(0), Optional(1), std::nullopt));
  EXPECT_THAT(ranks.replica[1], ElementsAre(std::nullopt, Optional(0), std::nullopt));
  EXPECT_EQ(ranks.output_rank, 2);
}

TEST_F(PlacementTest, ARosterHasNoOneWhoDoesNothing) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Placement placement, PlaceOn({{"", {"cpu:2"}}}));
  const RankMap ranks(placement);
  EXPECT_THAT(ranks.workers, ElementsAre(&fleet_.worker(2)));
  EXPECT_EQ(ranks.output_rank, 0);
}

}  // namespace
}  // namespace braid
