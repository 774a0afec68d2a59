#include "server/base/task_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(TaskPoolTest, AQueueRunsItsTasksInOrderOneAtATime) {
  TaskPool pool("test", 8);
  std::vector<int> order;  // not guarded: tasks of a queue never overlap
  {
    TaskQueue queue(&pool);
    for (int i = 0; i < 1000; ++i) {
      queue.Post([&order, i] { order.push_back(i); });
    }
  }
  ASSERT_EQ(order.size(), 1000);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(TaskPoolTest, QueuesRunSideBySideUpToTheNumberOfThreads) {
  TaskPool pool("test", 3);
  std::vector<std::unique_ptr<TaskQueue>> queues;
  absl::BlockingCounter started(3);
  absl::Notification go;
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  for (int q = 0; q < 10; ++q) {
    queues.push_back(std::make_unique<TaskQueue>(&pool));
    queues.back()->Post([&, q] {
      const int now = ++running;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      if (q < 3) {
        started.DecrementCount();
      }
      go.WaitForNotification();
      --running;
    });
  }
  started.Wait();
  go.Notify();
  queues.clear();
  EXPECT_EQ(most, 3);
  EXPECT_EQ(pool.threads(), 3);
}

TEST(TaskPoolTest, AQueueHasAThreadOnlyWhileItHasTasks) {
  TaskPool pool("test", 1);
  std::vector<std::unique_ptr<TaskQueue>> queues;
  for (int q = 0; q < 100; ++q) {
    queues.push_back(std::make_unique<TaskQueue>(&pool));
  }
  EXPECT_EQ(pool.threads(), 0);
  for (const auto& queue : queues) {
    absl::Notification done;
    queue->Post([&] { done.Notify(); });
    done.WaitForNotification();
  }
  EXPECT_EQ(pool.threads(), 1);
}

TEST(TaskPoolTest, QueuesTakeTurnsAfterEachTask) {
  TaskPool pool("test", 1);
  TaskQueue blocked(&pool);
  absl::Notification go;
  blocked.Post([&] { go.WaitForNotification(); });
  std::vector<int> order;
  TaskQueue first(&pool);
  TaskQueue second(&pool);
  for (int i = 0; i < 3; ++i) {
    first.Post([&] { order.push_back(1); });
  }
  second.Post([&] { order.push_back(2); });
  absl::Notification done;
  second.Post([&] { done.Notify(); });
  go.Notify();
  done.WaitForNotification();
  EXPECT_EQ(order[1], 2);
}

TEST(TaskPoolTest, TheDestructorOfAQueueWaitsForItsTasks) {
  TaskPool pool("test", 2);
  int ran = 0;
  absl::Notification gate;
  auto queue = std::make_optional<TaskQueue>(&pool);
  queue->Post([&] { gate.WaitForNotification(); });
  for (int i = 0; i < 100; ++i) {
    queue->Post([&] { ++ran; });
  }
  gate.Notify();
  queue.reset();
  EXPECT_EQ(ran, 100);
}

TEST(TaskPoolTest, ATaskMayPostAnother) {
  TaskPool pool("a name that is longer than the kernel allows", 1);
  bool ran = false;
  {
    TaskQueue queue(&pool);
    queue.Post([&] { queue.Post([&] { ran = true; }); });
  }
  EXPECT_TRUE(ran);
}

TEST(TaskPoolTest, ManyThreadsMayPostToManyQueues) {
  TaskPool pool("test", 4);
  constexpr int kQueues = 16;
  std::vector<int> ran(kQueues, 0);
  {
    std::vector<std::unique_ptr<TaskQueue>> queues;
    for (int q = 0; q < kQueues; ++q) {
      queues.push_back(std::make_unique<TaskQueue>(&pool));
    }
    std::vector<std::thread> producers;
    for (int p = 0; p < 4; ++p) {
      producers.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) {
          const auto q = static_cast<size_t>(i % kQueues);
          queues[q]->Post([&ran, q] { ++ran[q]; });
        }
      });
    }
    for (std::thread& producer : producers) {
      producer.join();
    }
  }
  for (int q = 0; q < kQueues; ++q) {
    EXPECT_EQ(ran[static_cast<size_t>(q)], 4 * (1000 / kQueues) + 4 * (q < 1000 % kQueues ? 1 : 0));
  }
}

}  // namespace
}  // namespace braid
