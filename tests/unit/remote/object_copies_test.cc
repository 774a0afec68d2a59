#include "server/remote/object_copies.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/remote/local_store.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

absl::Status Continue(int64_t, int64_t) { return absl::OkStatus(); }

class ObjectCopiesTest : public ::testing::Test {
 protected:
  std::unique_ptr<ObjectCopies> Open(int64_t max_bytes = 1000) const {
    return ObjectCopies::Open(store_.get(), dir_.path() / "copies", max_bytes).value();
  }
  size_t Objects() const { return Names(dir_.path() / "copies/objects").size(); }

  const TempDir dir_;
  const std::unique_ptr<ObjectStore> store_ = MakeLocalStore(dir_.path());
};

TEST_F(ObjectCopiesTest, CopiesObjectsUnderTheirNames) {
  dir_.Write("bucket/data/a", "one");
  dir_.Write("bucket/data/b/c", std::string((17 << 20) + 1, 'x'));
  dir_.Write("bucket/data/empty", "");
  dir_.Write("bucket/data/_c/d", "_");
  dir_.Write("bucket/data/.temporary/x", "hidden");
  int64_t last = 0;
  const auto copies = Open(int64_t{1} << 30);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto set,
                             copies->Copy("bucket/data", [&](int64_t bytes, int64_t) {
                               last = bytes;
                               return absl::OkStatus();
                             }));
  EXPECT_EQ(last, (17 << 20) + 5);
  const std::filesystem::path path = set->path;
  EXPECT_EQ(Contents(path / "a"), "one");
  EXPECT_EQ(Contents(path / "b/c"), std::string((17 << 20) + 1, 'x'));
  EXPECT_EQ(Contents(path / "empty"), "");
  EXPECT_EQ(Contents(path / "_c/d"), "_");
  EXPECT_FALSE(std::filesystem::exists(path / ".temporary"));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto one, copies->Copy("bucket/data/a", Continue));
  EXPECT_EQ(Contents(one->path), "one");
  EXPECT_EQ(Objects(), 4u);
}

TEST_F(ObjectCopiesTest, ReturnsAbsolutePathsForARelativeDirectory) {
  dir_.Write("bucket/a", "one");
  const auto copies =
      ObjectCopies::Open(store_.get(), std::filesystem::relative(dir_.path() / "copies"), 1000)
          .value();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto set, copies->Copy("bucket/a", Continue));
  EXPECT_TRUE(std::filesystem::path(set->root).is_absolute());
  EXPECT_TRUE(std::filesystem::path(set->path).is_absolute());
  EXPECT_EQ(Contents(set->path), "one");
}

TEST_F(ObjectCopiesTest, UsesCompleteCopiesAfterARestart) {
  dir_.Write("bucket/a", "one");
  const std::string identity = Open()->Copy("bucket/a", Continue).value()->identity;
  Put(dir_.path() / "copies/objects/half.tmp", "half");
  const auto copies = Open();
  EXPECT_EQ(Objects(), 1u);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto again, copies->Copy("bucket/a", [](int64_t, int64_t) {
    return absl::InternalError("copied again");
  }));
  EXPECT_EQ(again->identity, identity);
  dir_.Write("bucket/a", "other");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto changed, copies->Copy("bucket/a", Continue));
  EXPECT_NE(changed->identity, identity);
  EXPECT_EQ(Contents(changed->path), "other");
  EXPECT_EQ(Contents(again->path), "one");
}

TEST_F(ObjectCopiesTest, RemovesSetsThatAreNotInUse) {
  for (const char* name : {"a", "b", "c"}) {
    dir_.Write(std::string("bucket/") + name, std::string(400, 'x'));
  }
  const auto copies = Open();
  BRAID_ASSERT_OK_AND_ASSIGN(auto a, copies->Copy("bucket/a", Continue));
  const std::string unused = copies->Copy("bucket/b", Continue).value()->path;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto c, copies->Copy("bucket/c", Continue));
  EXPECT_TRUE(std::filesystem::exists(a->path));
  EXPECT_FALSE(std::filesystem::exists(unused));
  EXPECT_EQ(Objects(), 2u);
  EXPECT_THAT(copies->Copy("bucket/b", Continue).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("objects in use")));
  a = nullptr;
  EXPECT_THAT(copies->Copy("bucket/b", Continue).status(), IsOk());
  dir_.Write("bucket/d", std::string(1001, 'x'));
  EXPECT_THAT(copies->Copy("bucket/d", Continue).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1001 bytes")));
}

TEST_F(ObjectCopiesTest, GivesTheSpaceBackAfterAnError) {
  dir_.Write("bucket/a", std::string(900, 'x'));
  dir_.Write("bucket/b", std::string(900, 'x'));
  const auto copies = Open();
  EXPECT_THAT(
      copies->Copy("bucket/a", [](int64_t, int64_t) { return absl::CancelledError("stop"); })
          .status(),
      StatusIs(absl::StatusCode::kCancelled, "stop"));
  EXPECT_THAT(copies->Copy("bucket/b", Continue).status(), IsOk());
}

}  // namespace
}  // namespace braid
