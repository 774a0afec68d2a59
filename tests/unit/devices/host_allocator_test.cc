#include "server/devices/host_allocator.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::ContainsRegex;

constexpr size_t kTensor = 64 << 20;
constexpr int64_t kMib = 1 << 10;  // KiB, as the kernel counts
constexpr int64_t kReserve = 256 * kMib;

// A process that is told of what memory there is, and touches none.
class HostAllocatorTest : public ::testing::Test {
 protected:
  void Tell(int64_t available, int64_t own) const {
    root_.Write("proc/meminfo", absl::StrCat("MemAvailable: ", available, " kB\n"));
    root_.Write("proc/self/status", absl::StrCat("RssAnon: ", own, " kB\n"));
  }

  // What it says when it refuses `bytes`; empty if it does not.
  std::string Refusal(size_t bytes) {
    try {
      allocator_.allocate(bytes);
      return "";
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
  }

  const TempDir root_;
  HostAllocator allocator_{root_.path()};
};

TEST_F(HostAllocatorTest, WhatDoesNotFitIsRefusedWithWhatWasWantedAndIsFree) {
  Tell(kReserve + 40 * kMib, 0);
  // A few bytes may be other tensors'.
  EXPECT_THAT(Refusal(kTensor), ContainsRegex("^out of host memory: 67108864 bytes were wanted, "
                                              "4[01][0-9]{6} are free$"));
  Tell(kReserve / 2, 0);
  EXPECT_THAT(Refusal(kTensor), ContainsRegex(" 67108864 bytes were wanted, 0 are free$"));
  Tell(kReserve + 80 * kMib, 0);
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, TensorsThatLiveAreCountedThoughNobodyTouchedThem) {
  Tell(kReserve + 160 * kMib, 0);
  c10::DataPtr first = allocator_.allocate(kTensor);
  const c10::DataPtr second = allocator_.allocate(kTensor);
  EXPECT_THAT(Refusal(kTensor), ContainsRegex(" 67108864 bytes were wanted, 3[123][0-9]{6} are"));
  first.clear();
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, TensorsThatWereTouchedAreCountedOnce) {
  Tell(kReserve + 160 * kMib, 0);
  const c10::DataPtr first = allocator_.allocate(kTensor);
  Tell(kReserve + 96 * kMib, 64 * kMib);
  EXPECT_EQ(Refusal(kTensor), "");
  Tell(kReserve + 32 * kMib, 64 * kMib);
  EXPECT_NE(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, SmallTensorsAreCountedToo) {
  Tell(kReserve + 80 * kMib, 0);
  const c10::DataPtr small = allocator_.allocate(kTensor / 2 - 1);
  EXPECT_NE(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, WhatTheProcessHasFreedAndKeptIsThereForTensors) {
  Tell(0, kReserve + 80 * kMib);
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, NobodyLooksForSmallTensors) {
  Tell(0, 0);
  EXPECT_EQ(Refusal(kTensor / 2 - 1), "");
  EXPECT_NE(Refusal(kTensor / 2), "");
}

TEST_F(HostAllocatorTest, OfSeveralAtATimeNoMoreAreMadeThanFit) {
  Tell(kReserve + 3 * 65 * kMib, 0);
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  absl::Barrier* const tried = new absl::Barrier(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      c10::DataPtr tensor;
      try {
        tensor = allocator_.allocate(kTensor);
        ++made;
      } catch (const c10::OutOfMemoryError&) {
      }
      if (tried->Block()) {
        delete tried;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(made, 3);
}

TEST_F(HostAllocatorTest, WhatWasRefusedIsNotCounted) {
  Tell(kReserve + 80 * kMib, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(Refusal(2 * kTensor), "");
  }
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, WhatMallocRefusesIsNotCounted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends the process for so much";
#endif
  const TempDir nothing;
  HostAllocator unlimited(nothing.path());
  // More than any address space has.
  EXPECT_THROW(unlimited.allocate(size_t{1} << 58), c10::OutOfMemoryError);
  Tell(kReserve + 80 * kMib, 0);
  EXPECT_EQ(Refusal(kTensor), "");
}

}  // namespace
}  // namespace braid
