// Batches that run on the thread that submits them.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/device.h"
#include "server/devices/run_on.h"
#include "server/devices/worker.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/queue_source.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerLentTest : public ::testing::Test {
 protected:
  WorkerLentTest() {
    worker().AddSource(source_);
    // The worker sleeps until it is woken.
    EXPECT_TRUE(Eventually([this] { return source_->asked() > 0; }));
  }

  Worker& worker() { return fleet_.worker(0); }
  void RunInline() { EXPECT_TRUE(worker().RunInline(*source_)); }

  const std::shared_ptr<QueueSource> source_ = std::make_shared<QueueSource>();
  WorkerFleet fleet_{1};
};

TEST_F(WorkerLentTest, RunsABatchOnTheCallingThread) {
  EXPECT_FALSE(worker().RunInline(*source_));  // no batch
  std::thread::id thread;
  bool free = true;
  source_->Push([&] {
    thread = std::this_thread::get_id();
    free = worker().free();
  });
  RunInline();
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_FALSE(free);
  EXPECT_TRUE(worker().free());
}

TEST_F(WorkerLentTest, DoesNotLendABusyWorker) {
  const WorkerBlock block(worker());
  source_->Push([] {});
  EXPECT_FALSE(worker().RunInline(*source_));
}

TEST_F(WorkerLentTest, DoesNotRunAnUnknownSource) {
  QueueSource other;
  other.Push([] {});
  EXPECT_FALSE(worker().RunInline(other));
}

TEST_F(WorkerLentTest, DoesNotLendWithSeveralIntraOpThreads) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(MakeCpuDevice(/*threads=*/2));
  const WorkerFleet fleet(std::move(devices));
  const auto source = std::make_shared<QueueSource>();
  fleet.worker(0).AddSource(source);
  EXPECT_TRUE(Eventually([&] { return source->asked() > 0; }));
  source->Push([] {});
  EXPECT_FALSE(fleet.worker(0).RunInline(*source));
}

TEST_F(WorkerLentTest, WorkThatArrivesDuringALoanRunsOnTheWorker) {
  absl::BlockingCounter done(2);
  std::thread::id batch_thread;
  std::thread::id task_thread;
  bool lent = true;
  std::atomic<bool> overlaps{false};
  source_->Push([&] {
    worker().Post([&] {
      overlaps = overlaps || lent;
      task_thread = std::this_thread::get_id();
      done.DecrementCount();
    });
    source_->Push([&] {
      overlaps = overlaps || lent;
      batch_thread = std::this_thread::get_id();
      done.DecrementCount();
    });
    EXPECT_FALSE(worker().Wake());               // busy
    EXPECT_FALSE(worker().RunInline(*source_));  // already lent
    lent = false;
  });
  RunInline();
  done.Wait();
  EXPECT_FALSE(overlaps);
  EXPECT_EQ(batch_thread, task_thread);
  EXPECT_NE(batch_thread, std::this_thread::get_id());
}

// Like a task that waited for a batch on the worker.
TEST_F(WorkerLentTest, ATaskThatWaitedDuringALoanEarnsCredit) {
  std::vector<std::string> order;
  absl::BlockingCounter done(2);
  const auto note = [&](const char* what) {
    order.emplace_back(what);
    done.DecrementCount();
  };
  source_->Push([&] {
    worker().Post([&] { note("task"); });
    source_->Push([&] { note("batch"); });
  });
  RunInline();
  done.Wait();
  EXPECT_THAT(order, ElementsAre("task", "batch"));
}

TEST_F(WorkerLentTest, StopWaitsForTheEndOfALoan) {
  absl::Notification begun;
  absl::Notification go_on;
  std::atomic<bool> over{false};
  source_->Push([&] {
    begun.Notify();
    go_on.WaitForNotification();
    over = true;
  });
  std::thread lender([&] { RunInline(); });
  begun.WaitForNotification();
  std::thread stopper([&] {
    worker().Stop();
    EXPECT_TRUE(over);
  });
  go_on.Notify();
  stopper.join();
  lender.join();
}

TEST_F(WorkerLentTest, ErrorsNameTheDevice) {
  absl::Status status;
  source_->Push([&] { status = CatchTorch([]() -> absl::Status { throw std::bad_alloc(); }); });
  RunInline();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cpu:0: ")));
  EXPECT_EQ(CurrentDeviceName(), "");
}

// A batch runs on the submitting thread or on the worker, exactly once and not concurrently.
TEST_F(WorkerLentTest, RunsEveryBatchExactlyOnce) {
  constexpr int kEach = 2000;
  constexpr int kThreads = 4;
  std::atomic<int> running{0};
  std::atomic<int> ran{0};
  std::atomic<bool> overlaps{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        source_->Push([&] {
          overlaps = overlaps || running.fetch_add(1) > 0;
          --running;
          ++ran;
        });
        if (t % 2 == 0 || !worker().RunInline(*source_)) {
          worker().Wake();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(Eventually([&] { return ran == kEach * kThreads; }));
  EXPECT_FALSE(overlaps);
}

}  // namespace
}  // namespace braid
