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
constexpr int64_t kMib = 1 << 10;  // in KiB, the kernel's unit
constexpr int64_t kReserve = 256 * kMib;

// Allocator whose view of the machine's memory is set by the test.
class HostAllocatorTest : public ::testing::Test {
 protected:
  void SetMemory(int64_t available, int64_t own) const {
    root_.Write("proc/meminfo", absl::StrCat("MemAvailable: ", available, " kB\n"));
    root_.Write("proc/self/status", absl::StrCat("RssAnon: ", own, " kB\n"));
  }

  // Returns the error for a tensor of `bytes`, or an empty string.
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

TEST_F(HostAllocatorTest, RefusesATensorThatDoesNotFitAndReportsSizes) {
  SetMemory(kReserve + 40 * kMib, 0);
  // Other tensors may take a few bytes.
  EXPECT_THAT(Refusal(kTensor),
              ContainsRegex("^out of host memory: cannot allocate 67108864 bytes, "
                            "4[01][0-9]{6} are available$"));
  SetMemory(kReserve / 2, 0);
  EXPECT_THAT(Refusal(kTensor), ContainsRegex(" 67108864 bytes, 0 are available$"));
  SetMemory(kReserve + 80 * kMib, 0);
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, CountsUntouchedTensors) {
  SetMemory(kReserve + 160 * kMib, 0);
  c10::DataPtr first = allocator_.allocate(kTensor);
  const c10::DataPtr second = allocator_.allocate(kTensor);
  EXPECT_THAT(Refusal(kTensor), ContainsRegex(" 67108864 bytes, 3[123][0-9]{6} are"));
  first.clear();
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, CountsTouchedTensorsOnce) {
  SetMemory(kReserve + 160 * kMib, 0);
  const c10::DataPtr first = allocator_.allocate(kTensor);
  SetMemory(kReserve + 96 * kMib, 64 * kMib);
  EXPECT_EQ(Refusal(kTensor), "");
  SetMemory(kReserve + 32 * kMib, 64 * kMib);
  EXPECT_NE(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, CountsSmallTensors) {
  SetMemory(kReserve + 80 * kMib, 0);
  const c10::DataPtr small = allocator_.allocate(kTensor / 2 - 1);
  EXPECT_NE(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, MemoryThatMallocKeepsIsAvailable) {
  SetMemory(0, kReserve + 80 * kMib);
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, DoesNotCheckSmallTensors) {
  SetMemory(0, 0);
  EXPECT_EQ(Refusal(kTensor / 2 - 1), "");
  EXPECT_NE(Refusal(kTensor / 2), "");
}

TEST_F(HostAllocatorTest, ConcurrentAllocationsDoNotExceedTheMemory) {
  SetMemory(kReserve + int64_t{3} * 65 * kMib, 0);
  std::atomic<int> made = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  absl::Barrier* const tried = new absl::Barrier(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      c10::DataPtr tensor;
      try {
        tensor = allocator_.allocate(kTensor);
        ++made;
      } catch (const c10::OutOfMemoryError&) {
        ++refused;
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
  EXPECT_EQ(refused, 5);
}

TEST_F(HostAllocatorTest, DoesNotCountRefusedTensors) {
  SetMemory(kReserve + 80 * kMib, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(Refusal(2 * kTensor), "");
  }
  EXPECT_EQ(Refusal(kTensor), "");
}

TEST_F(HostAllocatorTest, DoesNotCountTensorsThatMallocRefuses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends the process for such a size";
#endif
  const TempDir nothing;
  HostAllocator unlimited(nothing.path());
  // Larger than any address space.
  EXPECT_THROW(unlimited.allocate(size_t{1} << 58), c10::OutOfMemoryError);
  SetMemory(kReserve + 80 * kMib, 0);
  EXPECT_EQ(Refusal(kTensor), "");
}

}  // namespace
}  // namespace braid
