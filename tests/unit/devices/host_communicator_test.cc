#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/communicator.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

// One tensor a rank, filled with the rank's number + 1.
std::vector<at::Tensor> Ranks(int64_t count) {
  std::vector<at::Tensor> tensors;
  for (int64_t r = 0; r < count; ++r) {
    tensors.push_back(at::full({4}, static_cast<double>(r + 1), at::kDouble));
  }
  return tensors;
}

TEST(HostCommunicatorTest, BroadcastCopiesThePrimarys) {
  for (const int workers : {1, 2, 4}) {
    const WorkerFleet fleet(workers);
    const auto communicator = MakeHostCommunicator(fleet.workers());
    const std::vector<at::Tensor> tensors = Ranks(workers);
    EXPECT_THAT(communicator->Broadcast(tensors), IsOk());
    for (const at::Tensor& tensor : tensors) {
      EXPECT_TRUE(at::equal(tensor, at::ones({4}, at::kDouble)));
    }
  }
}

TEST(HostCommunicatorTest, ReduceSumsIntoThePrimarysAlone) {
  const WorkerFleet fleet(3);
  const auto communicator = MakeHostCommunicator(fleet.workers());
  const std::vector<at::Tensor> tensors = Ranks(3);
  EXPECT_THAT(communicator->Reduce(tensors, 3), IsOk());
  EXPECT_TRUE(at::equal(tensors[0], at::full({4}, 6.0, at::kDouble)));
  EXPECT_TRUE(at::equal(tensors[1], at::full({4}, 2.0, at::kDouble)));
  EXPECT_TRUE(at::equal(tensors[2], at::full({4}, 3.0, at::kDouble)));
}

TEST(HostCommunicatorTest, ReduceLeavesOutTheRanksBeyond) {
  const WorkerFleet fleet(3);
  const auto communicator = MakeHostCommunicator(fleet.workers());
  for (const size_t ranks : {1, 2}) {
    const std::vector<at::Tensor> tensors = Ranks(3);
    EXPECT_THAT(communicator->Reduce(tensors, ranks), IsOk());
    const double sum = ranks == 1 ? 1 : 3;
    EXPECT_TRUE(at::equal(tensors[0], at::full({4}, sum, at::kDouble)));
  }
}

TEST(HostCommunicatorTest, SumsInTheOrderOfTheRanks) {
  const WorkerFleet fleet(3);
  const auto communicator = MakeHostCommunicator(fleet.workers());
  // (1e8 + 1) - 1e8 is 0 in float32, 1e8 + (1 - 1e8) is not.
  const std::vector<at::Tensor> tensors = {at::full({1}, 1e8), at::full({1}, 1.0),
                                           at::full({1}, -1e8)};
  EXPECT_THAT(communicator->Reduce(tensors, 3), IsOk());
  EXPECT_EQ(tensors[0].item<float>(), 0);
}

TEST(MakeCommunicatorTest, CpuWorkersGetTheHosts) {
  const WorkerFleet fleet(2);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto communicator, MakeCommunicator(fleet.workers()));
  const std::vector<at::Tensor> tensors = Ranks(2);
  EXPECT_THAT(communicator->Broadcast(tensors), IsOk());
  EXPECT_TRUE(at::equal(tensors[0], tensors[1]));
}

}  // namespace
}  // namespace braid
