#include "server/shared_memory/shared_regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/file_descriptor.h"
#include "tests/fakes/fake_gpus.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 10000;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr int64_t kHugeSigned = std::numeric_limits<int64_t>::max();

// Shared memory object of a client with kBytes bytes.
class SharedRegionsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ftruncate(file_.get(), kBytes), 0); }
  void TearDown() override { shm_unlink(key_.c_str()); }

  absl::Status Register(const std::string& name, uint64_t offset = 0, uint64_t bytes = kBytes) {
    return regions_.RegisterSystem(name, key_, offset, bytes);
  }

  const std::string key_ = absl::StrCat("/shared_regions_test_", getpid());
  const FileDescriptor file_{shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)};
  SharedRegions regions_;
};

TEST_F(SharedRegionsTest, SlicesPointIntoTheObject) {
  ASSERT_EQ(pwrite(file_.get(), "abc", 3, 5007), 3);
  ASSERT_THAT(Register("r", 5000, 100), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 7, 3, "f"));
  EXPECT_EQ(std::string(slice.data(), slice.bytes), "abc");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, regions_.List(RegionKind::kSystem, "r"));
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0]->key, key_);
  EXPECT_EQ(listed[0]->offset, 5000);
  EXPECT_EQ(listed[0]->bytes, 100);
}

TEST_F(SharedRegionsTest, AcceptsKeysWithoutSlash) {
  const std::string bare = key_.substr(1);
  ASSERT_EQ(pwrite(file_.get(), "abc", 3, 0), 3);
  ASSERT_THAT(regions_.RegisterSystem("r", bare, 0, 3), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, 3, "f"));
  EXPECT_EQ(std::string(slice.data(), slice.bytes), "abc");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, regions_.List(RegionKind::kSystem, "r"));
  EXPECT_EQ(listed[0]->key, bare);
}

TEST_F(SharedRegionsTest, RejectsRangesOutsideTheObject) {
  EXPECT_THAT(Register("r", 0, 0), RefusesField("byte_size", HasSubstr("0 (expected")));
  EXPECT_THAT(Register("r", 0, kBytes + 1), RefusesField("byte_size", HasSubstr("exceed")));
  EXPECT_THAT(Register("r", 1, kBytes), RefusesField("byte_size", HasSubstr("exceed")));
  EXPECT_THAT(Register("r", kHuge, 2), RefusesField("byte_size", HasSubstr("exceed")));
  EXPECT_THAT(Register("r", 2, kHuge), RefusesField("byte_size", HasSubstr("exceed")));
  EXPECT_THAT(Register("r", kBytes - 1, 1), IsOk());
}

TEST_F(SharedRegionsTest, RejectsSlicesOutsideTheRegion) {
  ASSERT_THAT(Register("r", 100, 50), IsOk());
  EXPECT_THAT(regions_.Find("r", 0, 50, "f"), IsOk());
  EXPECT_THAT(regions_.Find("r", 50, 0, "f"), IsOk());
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{1, 50},
                                      {0, 51},
                                      {-1, 5},
                                      {0, -1},
                                      {kHugeSigned, kHugeSigned},
                                      {51, 0}}) {
    EXPECT_THAT(regions_.Find("r", offset, bytes, "f"), RefusesField("f", HasSubstr("exceed")));
  }
  EXPECT_THAT(regions_.Find("other", 0, 1, "f"), RefusesField("f", HasSubstr("'other'")));
}

TEST_F(SharedRegionsTest, RejectsInvalidAndReservedKeys) {
  for (const char* key : {"", "/", "//x", "/a/b", "a/b", "/../x", "../x", "/..", "/x..y"}) {
    EXPECT_THAT(regions_.RegisterSystem("r", key, 0, 1),
                RefusesField("key", HasSubstr("invalid shared memory key")));
  }
  for (const char* key :
       {"/braid_x", "braid_x", "/nccl-1", "/torch_1_2", "/cuda.shm.1", "/sem.x", "sem.x"}) {
    EXPECT_THAT(regions_.RegisterSystem("r", key, 0, 1),
                RefusesField("key", HasSubstr("reserved")));
  }
  EXPECT_THAT(regions_.RegisterSystem("r", std::string("/x\0y", 4), 0, 1),
              RefusesField("key", HasSubstr("invalid shared memory key")));
  EXPECT_THAT(regions_.RegisterSystem("r", "/" + std::string(300, 'x'), 0, 1),
              RefusesField("key", HasSubstr("255")));
  EXPECT_THAT(regions_.RegisterSystem("r", "/there_is_no_such_object", 0, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no_such")));
}

TEST_F(SharedRegionsTest, RejectsNamesInUse) {
  EXPECT_THAT(Register(""), RefusesField("name", HasSubstr("0 bytes")));
  EXPECT_THAT(Register(std::string(1025, 'x')), RefusesField("name", HasSubstr("1025")));
  ASSERT_THAT(Register("r"), IsOk());
  EXPECT_THAT(Register("r"), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'r'")));
  regions_.Unregister(RegionKind::kSystem, "r");
  regions_.Unregister(RegionKind::kSystem, "r");
  EXPECT_THAT(Register("r"), IsOk());
  EXPECT_THAT(Register("s"), IsOk());
  EXPECT_THAT(*regions_.List(RegionKind::kSystem, ""), SizeIs(2));
  regions_.Unregister(RegionKind::kSystem, "");
  EXPECT_THAT(*regions_.List(RegionKind::kSystem, ""), SizeIs(0));
  EXPECT_THAT(regions_.List(RegionKind::kSystem, "r"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'r'")));
}

TEST_F(SharedRegionsTest, ASliceOutlivesItsRegistration) {
  ASSERT_THAT(Register("r"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, 5, "f"));
  regions_.Unregister(RegionKind::kSystem, "r");
  slice.data()[4] = 'z';
  EXPECT_THAT(CheckWhole(slice), IsOk());
}

TEST_F(SharedRegionsTest, RejectsATruncatedRegion) {
  ASSERT_THAT(Register("r"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, kBytes, "f"));
  ASSERT_EQ(ftruncate(file_.get(), 0), 0);
  EXPECT_EQ(static_cast<volatile char*>(slice.data())[0], 0);
  EXPECT_THAT(CheckWhole(slice),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("truncated")));
  EXPECT_THAT(regions_.Find("r", 0, 1, "f"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("truncated")));
}

class GpuRegionsTest : public ::testing::Test {
 protected:
  FakeGpus gpus_{{{"handle", "0123456789"}}, 0, absl::OkStatus()};
  SharedRegions regions_{gpus_.Source(2)};
};

TEST_F(GpuRegionsTest, CopiesSlices) {
  ASSERT_THAT(regions_.RegisterGpu("r", "handle", 1, 8), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 2, 4, "f"));
  EXPECT_EQ(slice.data(), nullptr);
  EXPECT_THAT(CheckWhole(slice), IsOk());
  std::string bytes(4, ' ');
  ASSERT_THAT(slice.Read(bytes.data()), IsOk());
  EXPECT_EQ(bytes, "2345");
  ASSERT_THAT(slice.Write(1, 2, "ab"), IsOk());
  EXPECT_EQ(gpus_.allocations["handle"], "012ab56789");
}

TEST_F(GpuRegionsTest, RejectsRangesOutsideTheAllocation) {
  EXPECT_THAT(regions_.RegisterGpu("r", "handle", 0, 0),
              RefusesField("byte_size", HasSubstr("expected 1 to 10")));
  EXPECT_THAT(regions_.RegisterGpu("r", "handle", 0, 11),
              RefusesField("byte_size", HasSubstr("11 (expected")));
  EXPECT_EQ(gpus_.open, 0);
  ASSERT_THAT(regions_.RegisterGpu("r", "handle", 0, 8), IsOk());
  EXPECT_THAT(regions_.Find("r", 0, 8, "f"), IsOk());
  EXPECT_THAT(regions_.Find("r", 1, 8, "f"), RefusesField("f", HasSubstr("of 8 bytes")));
}

TEST_F(GpuRegionsTest, RejectsUnknownGpusAndHandles) {
  for (const int64_t gpu : {int64_t{-1}, int64_t{2}, kHugeSigned}) {
    EXPECT_THAT(regions_.RegisterGpu("r", "handle", gpu, 1),
                RefusesField("device_id", HasSubstr("expected 0 to 1")));
  }
  EXPECT_THAT(regions_.RegisterGpu("r", "other", 0, 1),
              RefusesField("raw_handle", HasSubstr("no allocation")));
  EXPECT_THAT(regions_.RegisterGpu("", "handle", 0, 1), RefusesField("name", HasSubstr("0 bytes")));
}

TEST_F(GpuRegionsTest, NamesAreUniqueAcrossKinds) {
  const std::string key = absl::StrCat("/gpu_regions_test_", getpid());
  const FileDescriptor file(shm_open(key.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  ASSERT_EQ(ftruncate(file.get(), 100), 0);
  ASSERT_THAT(regions_.RegisterSystem("system", key, 0, 100), IsOk());
  shm_unlink(key.c_str());
  ASSERT_THAT(regions_.RegisterGpu("gpu", "handle", 0, 1), IsOk());
  EXPECT_THAT(regions_.RegisterGpu("system", "handle", 0, 1),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'system'")));
  EXPECT_THAT(regions_.RegisterSystem("gpu", key, 0, 100),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'gpu'")));
  EXPECT_THAT(regions_.List(RegionKind::kGpu, "system"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'system'")));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, regions_.List(RegionKind::kGpu, ""));
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0]->name, "gpu");
  regions_.Unregister(RegionKind::kGpu, "system");
  regions_.Unregister(RegionKind::kSystem, "gpu");
  EXPECT_THAT(regions_.Find("system", 0, 1, "f"), IsOk());
  EXPECT_THAT(regions_.Find("gpu", 0, 1, "f"), IsOk());
  regions_.Unregister(RegionKind::kGpu, "");
  EXPECT_THAT(regions_.Find("system", 0, 1, "f"), IsOk());
  EXPECT_THAT(regions_.Find("gpu", 0, 1, "f"), RefusesField("f", HasSubstr("'gpu'")));
}

TEST_F(GpuRegionsTest, ClosesMemoryAfterItsLastUse) {
  ASSERT_THAT(regions_.RegisterGpu("r", "handle", 0, 1), IsOk());
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, 1, "f"));
    regions_.Unregister(RegionKind::kGpu, "r");
    EXPECT_EQ(gpus_.open, 1);
  }
  EXPECT_EQ(gpus_.open, 0);
}

}  // namespace
}  // namespace braid
