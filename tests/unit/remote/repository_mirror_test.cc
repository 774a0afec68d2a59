#include "server/remote/repository_mirror.h"

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

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAre;

class RepositoryMirrorTest : public ::testing::Test {
 protected:
  std::unique_ptr<RepositoryMirror> Open() const {
    return RepositoryMirror::Open(store_.get(), "bucket/models", dir_.path() / "mirror").value();
  }
  void Write(const std::string& file, const std::string& text) const {
    dir_.Write("bucket/models/" + file, text);
  }

  const TempDir dir_;
  const fs::path models_ = dir_.path() / "mirror/models";
  const std::unique_ptr<ObjectStore> store_ = MakeLocalStore(dir_.path());
};

TEST_F(RepositoryMirrorTest, FollowsTheRepository) {
  Write("a/config.pbtxt", "config");
  Write("a/1/model.pt2", "one");
  Write("a/1/model.safetensors", "weights");
  Write("b/1/folder/model.pt", "b");
  const auto mirror = Open();
  ASSERT_THAT(mirror->Update(), IsOk());
  EXPECT_THAT(Names(models_), UnorderedElementsAre("a", "b"));
  EXPECT_EQ(Contents(models_ / "a/1/model.safetensors"), "weights");
  EXPECT_EQ(Contents(models_ / "b/1/folder/model.pt"), "b");

  const auto before = fs::last_write_time(models_ / "a/config.pbtxt");
  Write("a/1/model.pt2", "changed");
  Write("a/2/model.pt2", "two");
  fs::remove_all(dir_.path() / "bucket/models/b");
  ASSERT_THAT(mirror->Update(), IsOk());
  EXPECT_THAT(Names(models_), UnorderedElementsAre("a"));
  EXPECT_EQ(Contents(models_ / "a/1/model.pt2"), "changed");
  EXPECT_EQ(Contents(models_ / "a/2/model.pt2"), "two");
  EXPECT_EQ(fs::last_write_time(models_ / "a/config.pbtxt"), before);
  EXPECT_EQ(Names(dir_.path() / "mirror/objects").size(), 4u);
}

TEST_F(RepositoryMirrorTest, KeepsFilesThatDidNotChange) {
  Write("a/1/model.pt", "one");
  ASSERT_THAT(Open()->Update(), IsOk());
  const auto before = fs::last_write_time(models_ / "a");
  ASSERT_THAT(Open()->Update(), IsOk());
  EXPECT_EQ(fs::last_write_time(models_ / "a"), before);
}

TEST_F(RepositoryMirrorTest, KeepsTheModelsAfterAnError) {
  Write("a/1/model.pt", "one");
  const auto mirror = Open();
  ASSERT_THAT(mirror->Update(), IsOk());
  fs::remove_all(dir_.path() / "bucket");
  EXPECT_THAT(mirror->Update(), StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  EXPECT_EQ(Contents(models_ / "a/1/model.pt"), "one");
}

}  // namespace
}  // namespace braid
