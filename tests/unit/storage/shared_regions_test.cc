#include "server/storage/shared_regions.h"

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
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 10000;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr int64_t kHugeSigned = std::numeric_limits<int64_t>::max();

// A client's shared memory object of kBytes bytes.
class SharedRegionsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ftruncate(file_.get(), kBytes), 0); }
  void TearDown() override { shm_unlink(key_.c_str()); }

  absl::Status Register(const std::string& name, uint64_t offset = 0, uint64_t bytes = kBytes) {
    return regions_.Register(name, key_, offset, bytes);
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
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, regions_.List("r"));
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0]->key, key_);
  EXPECT_EQ(listed[0]->offset, 5000);
  EXPECT_EQ(listed[0]->mapping->bytes(), 100);
}

TEST_F(SharedRegionsTest, AKeyMayLackItsSlash) {
  const std::string bare = key_.substr(1);
  ASSERT_EQ(pwrite(file_.get(), "abc", 3, 0), 3);
  ASSERT_THAT(regions_.Register("r", bare, 0, 3), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, 3, "f"));
  EXPECT_EQ(std::string(slice.data(), slice.bytes), "abc");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, regions_.List("r"));
  EXPECT_EQ(listed[0]->key, bare);
}

TEST_F(SharedRegionsTest, RangesAreWithinTheObject) {
  EXPECT_THAT(Register("r", 0, 0), RefusesField("byte_size", HasSubstr("is 0")));
  EXPECT_THAT(Register("r", 0, kBytes + 1), RefusesField("byte_size", HasSubstr("not within")));
  EXPECT_THAT(Register("r", 1, kBytes), RefusesField("byte_size", HasSubstr("not within")));
  EXPECT_THAT(Register("r", kHuge, 2), RefusesField("byte_size", HasSubstr("not within")));
  EXPECT_THAT(Register("r", 2, kHuge), RefusesField("byte_size", HasSubstr("not within")));
  EXPECT_THAT(Register("r", kBytes - 1, 1), IsOk());
}

TEST_F(SharedRegionsTest, SlicesAreWithinTheRegion) {
  ASSERT_THAT(Register("r", 100, 50), IsOk());
  EXPECT_THAT(regions_.Find("r", 0, 50, "f"), IsOk());
  EXPECT_THAT(regions_.Find("r", 50, 0, "f"), IsOk());
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{1, 50},
                                      {0, 51},
                                      {-1, 5},
                                      {0, -1},
                                      {kHugeSigned, kHugeSigned},
                                      {51, 0}}) {
    EXPECT_THAT(regions_.Find("r", offset, bytes, "f"), RefusesField("f", HasSubstr("not within")));
  }
  EXPECT_THAT(regions_.Find("other", 0, 1, "f"), RefusesField("f", HasSubstr("'other'")));
}

TEST_F(SharedRegionsTest, KeysAreOfClientsOnly) {
  for (const char* key : {"", "/", "//x", "/a/b", "a/b", "/../x", "../x", "/..", "/x..y"}) {
    EXPECT_THAT(regions_.Register("r", key, 0, 1), RefusesField("key", HasSubstr("no key")));
  }
  for (const char* key :
       {"/braid_x", "braid_x", "/nccl-1", "/torch_1_2", "/cuda.shm.1", "/sem.x", "sem.x"}) {
    EXPECT_THAT(regions_.Register("r", key, 0, 1), RefusesField("key", HasSubstr("not for")));
  }
  EXPECT_THAT(regions_.Register("r", std::string("/x\0y", 4), 0, 1),
              RefusesField("key", HasSubstr("no key")));
  EXPECT_THAT(regions_.Register("r", "/" + std::string(300, 'x'), 0, 1),
              RefusesField("key", HasSubstr("255")));
  EXPECT_THAT(regions_.Register("r", "/there_is_no_such_object", 0, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no_such")));
}

TEST_F(SharedRegionsTest, NamesAreTakenOnce) {
  EXPECT_THAT(Register(""), RefusesField("name", HasSubstr("0 bytes")));
  EXPECT_THAT(Register(std::string(1025, 'x')), RefusesField("name", HasSubstr("1025")));
  ASSERT_THAT(Register("r"), IsOk());
  EXPECT_THAT(Register("r"), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'r'")));
  regions_.Unregister("r");
  regions_.Unregister("r");
  EXPECT_THAT(Register("r"), IsOk());
  EXPECT_THAT(Register("s"), IsOk());
  EXPECT_THAT(*regions_.List(""), SizeIs(2));
  regions_.Unregister("");
  EXPECT_THAT(*regions_.List(""), SizeIs(0));
  EXPECT_THAT(regions_.List("r"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'r'")));
}

TEST_F(SharedRegionsTest, ASliceOutlivesItsRegistration) {
  ASSERT_THAT(Register("r"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, 5, "f"));
  regions_.Unregister("r");
  slice.data()[4] = 'z';
  EXPECT_THAT(CheckWhole(slice), IsOk());
}

TEST_F(SharedRegionsTest, ARegionThatIsCutOffIsRefusedFromThenOn) {
  ASSERT_THAT(Register("r"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SharedSlice slice, regions_.Find("r", 0, kBytes, "f"));
  ASSERT_EQ(ftruncate(file_.get(), 0), 0);
  EXPECT_EQ(static_cast<volatile char*>(slice.data())[0], 0);
  EXPECT_THAT(CheckWhole(slice), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lost")));
  EXPECT_THAT(regions_.Find("r", 0, 1, "f"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lost")));
}

}  // namespace
}  // namespace braid
