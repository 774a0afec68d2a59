#include "server/base/task_thread.h"

#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

TEST(TaskThreadTest, RunsTasksInOrder) {
  std::vector<int> order;
  {
    TaskThread thread("test");
    for (int i = 0; i < 3; ++i) {
      thread.Post([&order, i] { order.push_back(i); });
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

TEST(TaskThreadTest, DestructorRunsPostedTasks) {
  int ran = 0;
  absl::Notification gate;
  auto thread = std::make_optional<TaskThread>("test");
  thread->Post([&] { gate.WaitForNotification(); });
  for (int i = 0; i < 100; ++i) {
    thread->Post([&] { ++ran; });
  }
  gate.Notify();
  thread.reset();
  EXPECT_EQ(ran, 100);
}

TEST(TaskThreadTest, ATaskMayPostAnother) {
  bool ran = false;
  absl::Notification done;
  TaskThread thread("a name that is longer than the kernel allows");
  thread.Post([&] {
    thread.Post([&] {
      ran = true;
      done.Notify();
    });
  });
  done.WaitForNotification();
  EXPECT_TRUE(ran);
}

TEST(TaskThreadTest, ManyThreadsMayPost) {
  int ran = 0;
  {
    TaskThread tasks("test");
    std::vector<std::thread> producers;
    for (int p = 0; p < 4; ++p) {
      producers.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          tasks.Post([&ran] { ++ran; });
        }
      });
    }
    for (std::thread& producer : producers) {
      producer.join();
    }
  }
  EXPECT_EQ(ran, 2000);
}

}  // namespace
}  // namespace braid
