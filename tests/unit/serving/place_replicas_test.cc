#include "server/serving/place_replicas.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = InstanceGroup::Kind;

// --devices=cuda:0*2,cuda:3,cpu*2, or the CPU workers alone.
std::vector<std::unique_ptr<Device>> Devices(bool gpus) {
  std::vector<c10::Device> devices = {c10::kCPU, c10::kCPU};
  if (gpus) {
    devices.insert(devices.begin(), {{c10::kCUDA, 0}, {c10::kCUDA, 0}, {c10::kCUDA, 3}});
  }
  std::vector<std::unique_ptr<Device>> made;
  for (const c10::Device device : devices) {
    made.push_back(std::make_unique<FakeDevice>(device));
  }
  return made;
}

// The positions of the workers that are chosen.
absl::StatusOr<std::vector<int64_t>> Place(const std::vector<InstanceGroup>& groups,
                                           bool gpus = true) {
  const WorkerFleet fleet(Devices(gpus));
  const std::vector<Worker*> all = fleet.workers();
  const auto placed = PlaceReplicas(groups, all);
  if (!placed.ok()) {
    return placed.status();
  }
  std::vector<int64_t> positions;
  for (Worker* worker : *placed) {
    positions.push_back(std::find(all.begin(), all.end(), worker) - all.begin());
  }
  return positions;
}

TEST(PlaceReplicasTest, WithoutGroupsChoosesAllWorkers) {
  EXPECT_THAT(*Place({}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(PlaceReplicasTest, TheCountAppliesPerDevice) {
  EXPECT_THAT(*Place({{Kind::kGpu, 1, {}}}), ElementsAre(0, 2));
  EXPECT_THAT(*Place({{Kind::kGpu, 2, {0}}}), ElementsAre(0, 1));
  EXPECT_THAT(*Place({{Kind::kCpu, 1, {}}}), ElementsAre(3));
  EXPECT_THAT(*Place({{Kind::kCpu, 2, {}}, {Kind::kGpu, 1, {3}}}), ElementsAre(2, 3, 4));
}

TEST(PlaceReplicasTest, GroupsDoNotShareAWorker) {
  EXPECT_THAT(*Place({{Kind::kGpu, 1, {0}}, {Kind::kGpu, 1, {0}}}), ElementsAre(0, 1));
  EXPECT_THAT(Place({{Kind::kCpu, 2, {}}, {Kind::kCpu, 1, {}}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("instance_group[1].count: 1"), HasSubstr("2 workers"))));
}

TEST(PlaceReplicasTest, AutoPrefersGpus) {
  EXPECT_THAT(*Place({{Kind::kAuto, 1, {}}}), ElementsAre(0, 2));
  EXPECT_THAT(*Place({{Kind::kAuto, 1, {}}}, /*gpus=*/false), ElementsAre(0));
}

TEST(PlaceReplicasTest, TooManyReplicasNameTheFlag) {
  for (const auto& [group, words] : {
           std::pair{InstanceGroup{Kind::kGpu, 2, {}}, "--devices=cuda:3*N"},
           {InstanceGroup{Kind::kGpu, 1, {1}}, "--devices=cuda:1*N"},
           {InstanceGroup{Kind::kCpu, 3, {}}, "--devices=cpu*N"},
       }) {
    EXPECT_THAT(Place({group}), RefusesField("instance_group[0].count",
                                             AllOf(HasSubstr("replicas on"), HasSubstr(words))));
  }
  EXPECT_THAT(Place({{Kind::kGpu, 1, {}}}, /*gpus=*/false),
              RefusesField("instance_group[0].kind", HasSubstr("--devices has no GPU")));
}

}  // namespace
}  // namespace braid
