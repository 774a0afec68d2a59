// Batches that run on the thread that brings them.
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
    // Then it sleeps, and will not look by itself.
    EXPECT_TRUE(Eventually([this] { return source_->asked() > 0; }));
  }

  Worker& worker() { return fleet_.worker(0); }
  void RunHere() { EXPECT_TRUE(worker().RunHere(*source_)); }

  const std::shared_ptr<QueueSource> source_ = std::make_shared<QueueSource>();
  WorkerFleet fleet_{1};
};

TEST_F(WorkerLentTest, ABatchRunsOnTheCallingThread) {
  EXPECT_FALSE(worker().RunHere(*source_));  // has none
  std::thread::id thread;
  bool free = true;
  source_->Push([&] {
    thread = std::this_thread::get_id();
    free = worker().free();
  });
  RunHere();
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_FALSE(free);
  EXPECT_TRUE(worker().free());
}

TEST_F(WorkerLentTest, AWorkerAtWorkIsNotLent) {
  const WorkerBlock block(worker());
  source_->Push([] {});
  EXPECT_FALSE(worker().RunHere(*source_));
}

TEST_F(WorkerLentTest, ASourceThatItDoesNotKnowIsNotRun) {
  QueueSource other;
  other.Push([] {});
  EXPECT_FALSE(worker().RunHere(other));
}

TEST_F(WorkerLentTest, WithSeveralIntraOpThreadsItIsNotLent) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(MakeCpuDevice(/*threads=*/2));
  const WorkerFleet fleet(std::move(devices));
  const auto source = std::make_shared<QueueSource>();
  fleet.worker(0).AddSource(source);
  EXPECT_TRUE(Eventually([&] { return source->asked() > 0; }));
  source->Push([] {});
  EXPECT_FALSE(fleet.worker(0).RunHere(*source));
}

TEST_F(WorkerLentTest, WhatComesMeanwhileIsTheWorkers) {
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
    EXPECT_FALSE(worker().Wake());             // it is at work
    EXPECT_FALSE(worker().RunHere(*source_));  // nor is it lent twice
    lent = false;
  });
  RunHere();
  done.Wait();
  EXPECT_FALSE(overlaps);
  EXPECT_EQ(batch_thread, task_thread);
  EXPECT_NE(batch_thread, std::this_thread::get_id());
}

// As if the worker itself had kept it waiting.
TEST_F(WorkerLentTest, ATaskThatWaitedMeanwhileHasItsShare) {
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
  RunHere();
  done.Wait();
  EXPECT_THAT(order, ElementsAre("task", "batch"));
}

TEST_F(WorkerLentTest, StoppingWaitsForTheOneWhoHasIt) {
  absl::Notification begun;
  absl::Notification go_on;
  std::atomic<bool> over{false};
  source_->Push([&] {
    begun.Notify();
    go_on.WaitForNotification();
    over = true;
  });
  std::thread lender([&] { RunHere(); });
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
  RunHere();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cpu:0: ")));
  EXPECT_EQ(DeviceOfThread(), "");
}

// Whoever brings a batch either runs it or has a worker run it, and none runs twice or beside
// another.
TEST_F(WorkerLentTest, EveryBatchRunsOnceWhoeverRunsIt) {
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
        if (t % 2 == 0 || !worker().RunHere(*source_)) {
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
