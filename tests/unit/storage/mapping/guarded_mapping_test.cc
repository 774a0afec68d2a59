#include "server/storage/mapping/guarded_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/file_descriptor.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kPage = 4096;

class GuardedMappingTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ftruncate(file_.get(), 4 * kPage), 0); }

  const FileDescriptor file_{memfd_create("guarded_mapping_test", MFD_CLOEXEC)};
};

TEST_F(GuardedMappingTest, SharesAnyRangeOfTheFile) {
  ASSERT_EQ(pwrite(file_.get(), "abc", 3, kPage + 5), 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto mapping, GuardedMapping::Map(file_.get(), kPage + 5, 3));
  EXPECT_EQ(std::string(mapping->data(), mapping->bytes()), "abc");
  mapping->data()[1] = 'X';
  char byte = 0;
  ASSERT_EQ(pread(file_.get(), &byte, 1, kPage + 6), 1);
  EXPECT_EQ(byte, 'X');
  EXPECT_FALSE(mapping->damaged());
}

TEST_F(GuardedMappingTest, RandomAccessTurnsReadAheadOff) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto mapping, GuardedMapping::Map(file_.get(), 0, 4 * kPage));
  const auto flags = [&] {
    const std::string start = absl::StrFormat("%x-", reinterpret_cast<uintptr_t>(mapping->data()));
    std::ifstream maps("/proc/self/smaps");
    bool found = false;
    for (std::string line; std::getline(maps, line);) {
      found = found || absl::StartsWith(line, start);
      if (found && absl::StartsWith(line, "VmFlags:")) {
        return line;
      }
    }
    return std::string();
  };
  EXPECT_THAT(flags(), Not(HasSubstr(" rr")));
  mapping->ExpectRandomAccess();
  EXPECT_THAT(flags(), HasSubstr(" rr"));
}

TEST_F(GuardedMappingTest, SurvivesTruncationOfTheFile) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto cut, GuardedMapping::Map(file_.get(), 0, 4 * kPage));
  const FileDescriptor other(memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(other.get(), kPage), 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto whole, GuardedMapping::Map(other.get(), 0, kPage));
  whole->data()[0] = 'w';
  cut->data()[3 * kPage] = 'x';
  ASSERT_EQ(ftruncate(file_.get(), kPage), 0);
  std::vector<std::thread> readers;
  for (size_t page = 0; page < 4; ++page) {
    readers.emplace_back(
        [&cut, page] { EXPECT_EQ(static_cast<volatile char*>(cut->data())[page * kPage], 0); });
  }
  for (std::thread& reader : readers) {
    reader.join();
  }
  cut->data()[2 * kPage] = 'y';
  EXPECT_TRUE(cut->damaged());
  EXPECT_FALSE(whole->damaged());
  EXPECT_EQ(whole->data()[0], 'w');
}

TEST_F(GuardedMappingTest, MapsFilesThatAreOpenForReadingOnly) {
  ASSERT_EQ(pwrite(file_.get(), "abc", 3, kPage), 3);
  const std::string path = "/proc/self/fd/" + std::to_string(file_.get());
  const FileDescriptor reader(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(GuardedMapping::Map(reader.get(), 0, kPage),
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::_));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto mapping,
                             GuardedMapping::MapReadOnly(reader.get(), kPage, 3 * kPage));
  EXPECT_EQ(std::string(mapping->data(), 3), "abc");
  ASSERT_EQ(ftruncate(file_.get(), kPage), 0);
  EXPECT_EQ(static_cast<volatile char*>(mapping->data())[kPage], 0);
  EXPECT_TRUE(mapping->damaged());
}

TEST_F(GuardedMappingTest, ReusesFreedSlots) {
  for (size_t m = 0; m < GuardedMapping::kMaxMappings + 10; ++m) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto mapping, GuardedMapping::Map(file_.get(), 0, kPage));
    EXPECT_FALSE(mapping->damaged());
  }
}

TEST_F(GuardedMappingTest, LimitsTheNumberOfMappings) {
  std::vector<std::unique_ptr<GuardedMapping>> all;
  for (size_t m = 0; m < GuardedMapping::kMaxMappings; ++m) {
    BRAID_ASSERT_OK_AND_ASSIGN(all.emplace_back(), GuardedMapping::Map(file_.get(), 0, kPage));
  }
  EXPECT_THAT(GuardedMapping::Map(file_.get(), 0, kPage),
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("4096")));
}

TEST_F(GuardedMappingTest, SigbusElsewhereStillEndsTheProcess) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto mapping, GuardedMapping::Map(file_.get(), 0, kPage));
  auto* const unguarded = static_cast<volatile char*>(
      mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file_.get(), 2 * kPage));
  ASSERT_NE(unguarded, MAP_FAILED);
  ASSERT_EQ(ftruncate(file_.get(), kPage), 0);
  EXPECT_EXIT(unguarded[0], ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace braid
