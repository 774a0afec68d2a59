#include "server/devices/host_memory.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::Gt;
using ::testing::Lt;

constexpr int64_t kMachine = int64_t{1024} * (8000 + 500);
constexpr int64_t kOwn = int64_t{1024} * (300 + 40);

// Machine with 8000 KiB available and 500 KiB of free swap, and a process with 300 KiB of its own
// and 40 KiB swapped out.
class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    root_.Write("proc/meminfo",
                "MemTotal:       16000 kB\nMemFree:        1000 kB\nMemAvailable:   8000 kB\n"
                "SwapTotal:      900 kB\nSwapFree:       500 kB\n");
    root_.Write("proc/self/status",
                "Name:\tbraid-server\nVmRSS:\t 700 kB\nRssAnon:\t 300 kB\nRssFile:\t 400 kB\n"
                "VmSwap:\t 40 kB\n");
  }

  void WriteVersion2(const std::string& cgroup, const std::string& limit, int used,
                     int cached = 0) const {
    const std::string directory = absl::StrCat("sys/fs/cgroup/", cgroup, "/");
    root_.Write(directory + "memory.max", limit + "\n");
    root_.Write(directory + "memory.current", absl::StrCat(used, "\n"));
    root_.Write(directory + "memory.stat",
                absl::StrCat("anon 7\nfile 9999\nshmem 3\ninactive_file ", cached,
                             "\nactive_file 5\nslab 11\n"));
  }

  // Returns the bytes below the limits of the cgroups; kMachine without limits.
  int64_t Left() const { return ReachableHostBytes(root_.path()) - kOwn; }

  const TempDir root_;
};

TEST_F(HostMemoryTest, IsTheMachinesMemoryWithoutCgroups) {
  EXPECT_EQ(ReachableHostBytes(root_.path()), kMachine + kOwn);
}

TEST_F(HostMemoryTest, IsMemoryAloneWithoutSwap) {
  root_.Write("proc/meminfo", "MemAvailable:   8000 kB\n");
  root_.Write("proc/self/status", "RssAnon:\t 300 kB\n");
  EXPECT_EQ(ReachableHostBytes(root_.path()), 1024 * 8300);
}

TEST_F(HostMemoryTest, AppliesTheLimitOfCgroupVersion2) {
  root_.Write("proc/self/cgroup", "0::/\n");
  WriteVersion2("", "1000000", 400000, 100);
  EXPECT_EQ(Left(), 1000000 - (400000 - 100 - 5));
  WriteVersion2("", "1000000", 1200000);
  EXPECT_EQ(Left(), 0);
}

TEST_F(HostMemoryTest, IsAtMostTheMachinesMemory) {
  root_.Write("proc/self/cgroup", "0::/\n");
  WriteVersion2("", "10000000000", 0);
  EXPECT_EQ(Left(), kMachine);
}

TEST_F(HostMemoryTest, MaxMeansNoLimit) {
  root_.Write("proc/self/cgroup", "0::/\n");
  WriteVersion2("", "max", 400000);
  EXPECT_EQ(Left(), kMachine);
}

TEST_F(HostMemoryTest, AppliesTheLimitOfCgroupVersion1) {
  root_.Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/\n0::/\n");
  const std::string cgroup = "sys/fs/cgroup/memory/";
  root_.Write(cgroup + "memory.limit_in_bytes", "1000000\n");
  root_.Write(cgroup + "memory.usage_in_bytes", "400000\n");
  root_.Write(cgroup + "memory.stat",
              "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 70\n");
  EXPECT_EQ(Left(), 1000000 - (400000 - 370));
  root_.Write(cgroup + "memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Left(), kMachine);
}

TEST_F(HostMemoryTest, AppliesTheTightestLimitOfNestedCgroups) {
  root_.Write("proc/self/cgroup", "0::/a/b/c\n");
  WriteVersion2("a", "3000000", 1000000);
  WriteVersion2("a/b", "1500000", 500000);
  WriteVersion2("a/b/c", "max", 200000);
  WriteVersion2("a/other", "10", 5);
  EXPECT_EQ(Left(), 1000000 + 5);
  WriteVersion2("a", "3000000", 2900000);
  EXPECT_EQ(Left(), 100000 + 5);
  WriteVersion2("a/b/c", "200010", 200000);
  EXPECT_EQ(Left(), 10 + 5);
}

TEST_F(HostMemoryTest, UsesTheTopCgroupInAContainer) {
  root_.Write("proc/self/cgroup", "0::/docker/0123\n");
  WriteVersion2("", "1000000", 400000);
  EXPECT_EQ(Left(), 600000 + 5);
  root_.Write("proc/self/cgroup", "0::/../elsewhere\n");
  EXPECT_EQ(Left(), 600000 + 5);
}

TEST_F(HostMemoryTest, MissingFilesMeanNoLimit) {
  root_.Write("proc/self/status", "VmSwap:\t 40 kB\n");
  EXPECT_THAT(ReachableHostBytes(root_.path()), Gt(int64_t{1} << 60));
  EXPECT_THAT(ReachableHostBytes(root_.path() / "nothing"), Gt(int64_t{1} << 60));
}

TEST_F(HostMemoryTest, ReadsTheFilesOfThisMachine) {
  const int64_t bytes = ReachableHostBytes("/");
  EXPECT_THAT(bytes, Gt(1 << 20));
  EXPECT_THAT(bytes, Lt(int64_t{1} << 60));
}

}  // namespace
}  // namespace braid
