#include "server/devices/device_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "ATen/Parallel.h"
#include "absl/synchronization/mutex.h"
#include "c10/core/CPUAllocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/host_allocator.h"
#include "server/devices/run_on.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int IntraOpThreads(Worker& worker) {
  int threads = 0;
  EXPECT_THAT(RunOnEach({&worker}, Phase::kLoad,
                        [&](size_t) {
                          threads = at::get_num_threads();
                          return absl::OkStatus();
                        }),
              IsOk());
  return threads;
}

class DevicePoolTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<DevicePool>> Create(const std::string& devices, int threads,
                                                     double training_share = 0.25) {
    return DevicePool::Create({devices, threads, training_share, &clock_, &metrics_});
  }
  absl::StatusOr<std::unique_ptr<DevicePool>> Create(const std::string& devices, int threads,
                                                     const absl::StatusOr<CudaBackend*>& cuda) {
    return DevicePool::Create({devices, threads, /*training_share=*/0.25, &clock_, &metrics_},
                              cuda);
  }

 private:
  const RealClock clock_;
  Metrics metrics_;
};

TEST_F(DevicePoolTest, CreatesAWorkerForEachSlot) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cpu*3", 1));
  ASSERT_EQ(pool->workers().size(), 3);
  EXPECT_EQ(pool->workers()[2]->name(), "cpu:2");
}

TEST_F(DevicePoolTest, AppliesIntraOpThreads) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cpu*2", 3));
  EXPECT_EQ(IntraOpThreads(*pool->workers().front()), 3);
  EXPECT_EQ(pool->View().front().threads, 3);
}

// Returns the nice values of the worker's threads.
std::set<int> NiceValues(Worker& worker) {
  std::set<int> values;
  EXPECT_THAT(RunOnEach({&worker}, Phase::kLoad,
                        [&](size_t) {
                          absl::Mutex mu;
                          at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
                            const absl::MutexLock lock(&mu);
                            values.insert(getpriority(PRIO_PROCESS, 0));
                          });
                          return absl::OkStatus();
                        }),
              IsOk());
  return values;
}

TEST_F(DevicePoolTest, TrainsOnThreadsOfLowPriority) {
  // Raises of the nice value, for trainers of clients and of jobs. Each step divides the share of
  // a thread by 1.25.
  const std::map<double, std::pair<int, int>> wanted = {
      {0.0, {14, 19}}, {0.1, {10, 15}}, {0.25, {5, 10}}, {0.5, {0, 5}}, {0.9, {0, 5}}};
  for (const auto& [share, nicer] : wanted) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cpu*2", 2, share));
    ASSERT_EQ(pool->training_workers().size(), 2);
    ASSERT_EQ(pool->background_workers().size(), 2);
    Worker& training = *pool->training_workers()[1];
    Worker& background = *pool->background_workers()[1];
    EXPECT_EQ(training.name(), "cpu:1");
    EXPECT_EQ(background.name(), "cpu:1");
    const int usual = *NiceValues(*pool->workers()[1]).begin();
    EXPECT_THAT(NiceValues(training), ElementsAre(std::min(usual + nicer.first, 19))) << share;
    EXPECT_THAT(NiceValues(background), ElementsAre(std::min(usual + nicer.second, 19))) << share;
  }
}

TEST_F(DevicePoolTest, TrainsOnTheOnlyWorkerOfAGpu) {
  FakeCudaBackend cuda(1);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cuda", 1, &cuda));
  EXPECT_EQ(pool->training_workers(), pool->workers());
  EXPECT_EQ(pool->background_workers(), pool->workers());
}

TEST_F(DevicePoolTest, CountsTheWorkOfAllWorkersOfASlot) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cpu", 1));
  pool->background_workers()[0]->CountChunk(DeviceWork::kTraining, 3);
  pool->training_workers()[0]->CountChunk(DeviceWork::kTraining, 5);
  pool->workers()[0]->CountChunk(DeviceWork::kInference, 4);
  EXPECT_EQ(pool->View()[0].samples, 12);
}

TEST_F(DevicePoolTest, BackgroundBatchesOfASlotWaitForItsTrainers) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cpu*2", 1));
  // A worker that starts is busy until it looks for work.
  for (const Worker* worker : pool->training_workers()) {
    ASSERT_TRUE(Eventually([worker] { return worker->free(); }));
  }
  const WorkerBlock step(*pool->training_workers()[1]);
  const absl::Time before = absl::Now();
  EXPECT_GE(pool->workers()[1]->last_foreground(), before);
  EXPECT_LT(pool->workers()[0]->last_foreground(), before);
}

TEST_F(DevicePoolTest, DividesTheCoresByDefault) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const int slots : {1, 2, 64}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create(absl::StrCat("cpu*", slots), 0));
    EXPECT_EQ(pool->View().front().threads, std::max(1, cores / slots)) << slots;
  }
}

TEST_F(DevicePoolTest, DividesTheCoresAmongWorkersOfGpus) {
  FakeCudaBackend cuda(1);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const int slots : {1, 2, 64}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create(absl::StrCat("cuda*", slots), 3, &cuda));
    EXPECT_EQ(IntraOpThreads(*pool->workers().front()), std::max(1, cores / slots)) << slots;
    EXPECT_EQ(pool->View().front().threads, 0);
  }
}

TEST_F(DevicePoolTest, InstallsTheHostAllocatorWithOnlyGpus) {
  FakeCudaBackend cuda(1);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cuda", 1, &cuda));
  EXPECT_NE(dynamic_cast<HostAllocator*>(c10::GetCPUAllocator()), nullptr);
}

TEST_F(DevicePoolTest, ReportsWhyAGpuCannotBeUsed) {
  FakeCudaBackend cuda(1);
  cuda.device_error = absl::FailedPreconditionError("compute capability 7.0");
  EXPECT_THAT(Create("auto", 1, &cuda),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("compute capability 7.0")));
}

TEST_F(DevicePoolTest, ReportsWhyThereIsNoGpuAndAutoUsesTheCpu) {
  const absl::Status none = absl::UnavailableError("system not yet initialized");
  EXPECT_THAT(Create("cuda", 1, none), StatusIs(absl::StatusCode::kInvalidArgument,
                                                HasSubstr("system not yet initialized")));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("auto", 1, none));
  EXPECT_EQ(pool->workers().size(), 2);
}

TEST_F(DevicePoolTest, ViewShowsTheWorkOfEachSlot) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto pool, Create("cpu*2", 1));
  pool->workers()[1]->CountChunk(DeviceWork::kInference, 7);
  pool->workers()[1]->AddBusy(Phase::kForward, absl::Seconds(2));
  const std::vector<DeviceSlotView> view = pool->View();
  EXPECT_EQ(view[1].name, "cpu:1");
  EXPECT_EQ(view[1].kind, DeviceKind::kCpu);
  EXPECT_EQ(view[1].hardware, "");
  EXPECT_EQ(view[1].samples, 7);
  EXPECT_EQ(view[1].busy[static_cast<size_t>(Phase::kForward)], absl::Seconds(2));
  EXPECT_EQ(view[0].samples, 0);
}

TEST_F(DevicePoolTest, RejectsSlotsThatDoNotExist) {
  EXPECT_THAT(Create("cuda:99", 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'cuda:99'")));
}

}  // namespace
}  // namespace braid
