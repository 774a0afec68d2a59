#include "server/batching/expiry_thread.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

// Returns `next` on the first call.
class CountingQueue final : public ExpiringQueue {
 public:
  explicit CountingQueue(absl::Time next = absl::InfiniteFuture()) : next_(next) {}
  absl::Time Expire(absl::Time now) override {
    const absl::MutexLock lock(&mu_);
    times_.push_back(now);
    return std::exchange(next_, absl::InfiniteFuture());
  }
  // Waits for `count` calls and returns the time of the last.
  absl::Time Await(size_t count) {
    const auto asked = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return times_.size() >= count; };
    const absl::MutexLock lock(&mu_);
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&asked), absl::Seconds(30)));
    return times_.empty() ? absl::InfinitePast() : times_.back();
  }
  size_t count() {
    const absl::MutexLock lock(&mu_);
    return times_.size();
  }

 private:
  absl::Mutex mu_;
  absl::Time next_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Time> times_ ABSL_GUARDED_BY(mu_);
};

TEST(ExpiryThreadTest, CallsAtTheGivenTimeAndThenAtTheReturnedOne) {
  const absl::Time first = absl::Now() + absl::Milliseconds(20);
  const absl::Time second = first + absl::Milliseconds(20);
  const auto queue = std::make_shared<CountingQueue>(second);
  ExpiryThread thread;
  thread.Add(first, queue);
  EXPECT_GE(queue->Await(1), first);
  EXPECT_GE(queue->Await(2), second);
}

TEST(ExpiryThreadTest, AnEarlierTimeAddedLaterIsOnTime) {
  const auto later = std::make_shared<CountingQueue>();
  const auto earlier = std::make_shared<CountingQueue>();
  ExpiryThread thread;
  thread.Add(absl::Now() + absl::Hours(1), later);
  thread.Add(absl::Now() + absl::Milliseconds(10), earlier);
  earlier->Await(1);
}

TEST(ExpiryThreadTest, CallsAQueueOnceAtItsEarliestTime) {
  const absl::Time first = absl::Now() + absl::Milliseconds(20);
  const auto queue = std::make_shared<CountingQueue>();
  const auto last = std::make_shared<CountingQueue>();
  ExpiryThread thread;
  for (const int milliseconds : {2, 1, 0, 3}) {
    thread.Add(first + absl::Milliseconds(milliseconds), queue);
  }
  thread.Add(first + absl::Milliseconds(10), last);
  EXPECT_GE(queue->Await(1), first);
  last->Await(1);
  EXPECT_EQ(queue->count(), 1);
}

// Counts allocated objects.
template <typename T>
struct CountingAllocator {
  using value_type = T;
  explicit CountingAllocator(int* counter) : held(counter) {}
  template <typename U>
  explicit CountingAllocator(const CountingAllocator<U>& other) : held(other.held) {}
  T* allocate(size_t count) {
    ++*held;
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* memory, size_t count) {
    --*held;
    std::allocator<T>().deallocate(memory, count);
  }
  int* held;
};

TEST(ExpiryThreadTest, DestroyedQueuesAreErasedBeforeTheirTime) {
  int held = 0;
  const auto next = std::make_shared<CountingQueue>();
  ExpiryThread thread;
  for (int version = 0; version < 5; ++version) {
    thread.Add(absl::Now() + absl::Hours(24 * 365),
               std::allocate_shared<CountingQueue>(CountingAllocator<CountingQueue>(&held)));
  }
  thread.Add(absl::Now() + absl::Hours(1), next);
  EXPECT_EQ(held, 0);
}

TEST(ExpiryThreadTest, DestroyedQueuesAreNotCalled) {
  const auto next = std::make_shared<CountingQueue>();
  ExpiryThread thread;
  thread.Add(absl::Now(), std::make_shared<CountingQueue>());
  thread.Add(absl::Now(), next);
  next->Await(1);
}

}  // namespace
}  // namespace braid
