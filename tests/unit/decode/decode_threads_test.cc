#include "server/decode/decode_threads.h"

#include <string>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(DecodeThreadsTest, RunsEachPartOnceAndThenDone) {
  absl::Mutex mu;
  std::vector<int64_t> parts;
  absl::Notification done;
  DecodeThreads threads(3);
  threads.Post(
      5,
      [&](int64_t part) {
        const absl::MutexLock lock(&mu);
        parts.push_back(part);
      },
      [&] {
        EXPECT_EQ(parts.size(), 5);
        done.Notify();
      });
  done.WaitForNotification();
  EXPECT_THAT(parts, UnorderedElementsAre(0, 1, 2, 3, 4));
}

TEST(DecodeThreadsTest, PartsRunInParallel) {
  absl::Notification done;
  DecodeThreads threads(2);
  auto* const both = new absl::Barrier(2);
  threads.Post(
      2,
      [both](int64_t) {
        if (both->Block()) {
          delete both;
        }
      },
      [&] { done.Notify(); });
  done.WaitForNotification();
}

TEST(DecodeThreadsTest, ASmallRequestOvertakesALargeOne) {
  std::vector<std::string> order;
  absl::Notification posted;
  {
    DecodeThreads threads(1);
    threads.Post(
        1, [&](int64_t) { posted.WaitForNotification(); }, [] {});
    threads.Post(
        3, [&](int64_t) {}, [&] { order.emplace_back("large"); });
    threads.Post(
        1, [&](int64_t) {}, [&] { order.emplace_back("small"); });
    posted.Notify();
  }
  EXPECT_THAT(order, ElementsAre("small", "large"));
}

TEST(DecodeThreadsTest, DestructorRunsPostedWork) {
  int done = 0;
  {
    DecodeThreads threads(2);
    threads.Post(
        1, [](int64_t) {}, [&] { ++done; });
  }
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace braid
