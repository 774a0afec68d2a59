// Errors of a worker whose device is lost.
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/batching/run_inference.h"
#include "server/devices/cuda/pinned_pool.h"
#include "server/devices/run_on.h"
#include "server/devices/worker.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/puppet_replica.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class WorkerHealthTest : public ::testing::Test {
 protected:
  WorkerHealthTest() {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    Worker::Options options{"fake:0", 0.25, &clock_, &metrics_};
    options.on_lost = [this](const absl::Status& why) {
      ++lost_;
      why_ = why;
    };
    worker_ = std::make_unique<Worker>(std::move(options), std::move(device));
  }

  // Returns the status of `work` on the worker.
  absl::Status Run(absl::Status work) {
    return RunOnEach({worker_.get()}, Phase::kForward, [&](size_t) {
      ++ran_;
      return work;
    });
  }
  // Returns the status of a batch for a model with `forward`.
  absl::Status RunBatchOf(PuppetReplica::Function forward) {
    PuppetReplica replica(std::move(forward));
    absl::Status status;
    absl::Notification done;
    worker_->Post([&] {
      status = RunOnce(PuppetConfig(8), *worker_, replica, {MakeRows("x", 2, 0)}, 2).status();
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  const RealClock clock_;
  Metrics metrics_;
  FakeDevice* device_ = nullptr;
  int lost_ = 0;
  absl::Status why_;
  int ran_ = 0;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerHealthTest, ATransientErrorLeavesTheWorkerHealthy) {
  device_->set_fault(absl::InternalError("once"));
  EXPECT_THAT(Run(absl::OkStatus()), StatusIs(absl::StatusCode::kInternal, HasSubstr("once")));
  device_->set_fault(absl::OkStatus());
  EXPECT_THAT(Run(absl::OkStatus()), IsOk());
  EXPECT_TRUE(worker_->healthy());
  EXPECT_EQ(lost_, 0);
}

TEST_F(WorkerHealthTest, ALostDeviceStaysLostAndIsReportedOnce) {
  device_->set_fault(absl::UnavailableError("assert"));
  EXPECT_THAT(Run(absl::OkStatus()), StatusIs(kUnavailable, HasSubstr("fake:0")));
  device_->set_fault(absl::OkStatus());
  EXPECT_THAT(Run(absl::OkStatus()), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_FALSE(worker_->healthy());
  EXPECT_EQ(lost_, 1);
  EXPECT_THAT(why_, StatusIs(kUnavailable, AllOf(HasSubstr("fake:0"), HasSubstr("assert"))));
  EXPECT_EQ(ran_, 1);  // later work is refused
}

TEST_F(WorkerHealthTest, LoadThreadsDetectALostDeviceAndAreRefused) {
  const auto beside = [&] {
    return RunOnLoadThreads({worker_.get()}, [&](size_t) {
      ++ran_;
      return absl::OkStatus();
    });
  };
  EXPECT_THAT(Run(absl::OkStatus()), IsOk());
  device_->set_fault(absl::UnavailableError("assert"));
  EXPECT_THAT(beside(), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_FALSE(worker_->healthy());
  EXPECT_EQ(lost_, 1);
  EXPECT_EQ(device_->entered(), 1);
  EXPECT_EQ(device_->entered_for_loading(), 1);
  EXPECT_THAT(beside(), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_THAT(Run(absl::OkStatus()), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_EQ(lost_, 1);
  EXPECT_EQ(ran_, 2);
}

TEST_F(WorkerHealthTest, AnErrorOfWorkOnALostDeviceIsUnavailable) {
  device_->set_fault(absl::UnavailableError("assert"));
  EXPECT_THAT(Run(absl::InternalError("device-side assert")),
              StatusIs(kUnavailable, HasSubstr("fake:0")));
}

TEST_F(WorkerHealthTest, ABatchThatFailsOnALostDeviceIsUnavailable) {
  device_->set_fault(absl::UnavailableError("assert"));
  const auto fail = [](const std::vector<at::Tensor>&) -> absl::StatusOr<std::vector<at::Tensor>> {
    TORCH_CHECK(false, "CUDA error: device-side assert triggered");
  };
  EXPECT_THAT(RunBatchOf(fail), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_EQ(lost_, 1);
}

TEST_F(WorkerHealthTest, ABatchWhoseCopyFailsOnALostDeviceIsUnavailable) {
  device_->set_fault(absl::UnavailableError("assert"));
  // A tensor without memory cannot be copied.
  const auto forward =
      [](const std::vector<at::Tensor>& inputs) -> absl::StatusOr<std::vector<at::Tensor>> {
    return std::vector<at::Tensor>{inputs[0].to(at::kMeta)};
  };
  EXPECT_THAT(RunBatchOf(forward), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_EQ(lost_, 1);
}

TEST_F(WorkerHealthTest, KeepsStagedInputsUntilTheDeviceIsSynchronized) {
  PinnedPool pool([](void*, size_t) { return absl::OkStatus(); });
  device_->pinned = &pool;
  const void* staged = nullptr;
  const auto forward =
      [&](const std::vector<at::Tensor>& inputs) -> absl::StatusOr<std::vector<at::Tensor>> {
    staged = inputs[0].const_data_ptr();
    return std::vector<at::Tensor>{inputs[0].clone()};
  };
  device_->on_synchronize = [&] { EXPECT_NE(pool.allocate(1).get(), staged); };
  EXPECT_THAT(RunBatchOf(forward), IsOk());
  EXPECT_EQ(pool.allocate(1).get(), staged);
}

TEST_F(WorkerHealthTest, DoesNotRunABatchOnALostDevice) {
  device_->set_fault(absl::UnavailableError("assert"));
  EXPECT_THAT(Run(absl::OkStatus()), StatusIs(kUnavailable, HasSubstr("fake:0")));
  int ran = 0;
  const auto forward =
      [&](const std::vector<at::Tensor>& inputs) -> absl::StatusOr<std::vector<at::Tensor>> {
    ++ran;
    return inputs;
  };
  EXPECT_THAT(RunBatchOf(forward), StatusIs(kUnavailable, HasSubstr("fake:0")));
  EXPECT_EQ(ran, 0);
}

}  // namespace
}  // namespace braid
