#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/communicator.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsNull;

WorkerFleet Workers(const std::vector<c10::Device>& on) {
  std::vector<std::unique_ptr<Device>> devices;
  for (const c10::Device device : on) {
    devices.push_back(std::make_unique<FakeDevice>(device));
  }
  return WorkerFleet(std::move(devices));
}

TEST(MakeCommunicatorTest, ReturnsAnExceptionOfTheBackendAsAStatus) {
  FakeCudaBackend cuda(2);
  const WorkerFleet fleet = Workers({{c10::kCUDA, 0}, {c10::kCUDA, 1}});
  EXPECT_THAT(MakeCommunicator(fleet.workers(), &cuda),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("device-side assert")));
}

TEST(MakeCommunicatorTest, ReturnsNullptrForWorkersThatShareAGpu) {
  FakeCudaBackend cuda(1);
  const WorkerFleet fleet = Workers({{c10::kCUDA, 0}, {c10::kCUDA, 0}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto communicator, MakeCommunicator(fleet.workers(), &cuda));
  EXPECT_THAT(communicator, IsNull());
}

class SharedCommunicatorTest : public ::testing::Test {
 protected:
  SharedCommunicatorTest() { cuda_.nccl = &nccl_; }

  std::shared_ptr<Communicator> Make(const std::vector<Worker*>& workers) {
    auto made = MakeCommunicator(workers, &cuda_);
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }

  FakeNccl nccl_;
  FakeCudaBackend cuda_{3};
  const WorkerFleet fleet_ = Workers({{c10::kCUDA, 0}, {c10::kCUDA, 1}, {c10::kCUDA, 2}});
  const std::vector<Worker*> workers_ = fleet_.workers();
};

TEST_F(SharedCommunicatorTest, IsReusedForTheSameWorkers) {
  const auto first = Make(workers_);
  EXPECT_EQ(Make(workers_), first);
  EXPECT_EQ(cuda_.cliques, 1);
}

TEST_F(SharedCommunicatorTest, IsNotReusedForOtherWorkersOrRanks) {
  const auto first = Make(workers_);
  EXPECT_NE(Make({workers_[0], workers_[1]}), first);
  EXPECT_NE(Make({workers_[1], workers_[0], workers_[2]}), first);
  EXPECT_EQ(cuda_.cliques, 3);
}

TEST_F(SharedCommunicatorTest, IsDestroyedWithItsLastUser) {
  auto first = Make(workers_);
  auto second = Make(workers_);
  first.reset();
  EXPECT_EQ(Make(workers_), second);
  EXPECT_EQ(cuda_.cliques, 1);
  second.reset();
  Make(workers_);
  EXPECT_EQ(cuda_.cliques, 2);
}

TEST_F(SharedCommunicatorTest, IsNotReusedAfterAnAbort) {
  const auto first = Make(workers_);
  nccl_.set_begin_fault(absl::InternalError("ncclGroupEnd: unhandled cuda error"));
  EXPECT_THAT(first->Broadcast({at::ones({1}), at::ones({1}), at::ones({1})}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("unhandled")));
  EXPECT_TRUE(Eventually([&] { return nccl_.aborted() == 1; }));
  EXPECT_NE(Make(workers_), first);
  EXPECT_EQ(cuda_.cliques, 2);
}

TEST_F(SharedCommunicatorTest, SumsOfTwoUsersRunInTheOrderOfTheirStart) {
  const auto first = Make(workers_);
  const auto second = Make(workers_);
  const auto sum = [](Communicator& communicator) {
    for (int i = 0; i < 50; ++i) {
      const std::vector<at::Tensor> tensors = {at::full({2}, 1.0), at::full({2}, 2.0),
                                               at::full({2}, 3.0)};
      EXPECT_THAT(communicator.BeginSum(0, tensors, /*all=*/true), IsOk());
      for (size_t rank = 0; rank < tensors.size(); ++rank) {
        EXPECT_THAT(communicator.EndSums(rank), IsOk());
        EXPECT_TRUE(at::equal(tensors[rank], at::full({2}, 6.0)));
      }
    }
  };
  {
    const std::jthread other([&] { sum(*second); });
    sum(*first);
  }
  EXPECT_EQ(nccl_.most_inside(), 1);
  EXPECT_EQ(nccl_.begun(), 100);
}

}  // namespace
}  // namespace braid
