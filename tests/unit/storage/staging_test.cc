#include "server/storage/staging.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StagingTest : public ::testing::Test {
 protected:
  void StageFile(const std::string& text) const {
    BRAID_ASSERT_OK_AND_ASSIGN(const std::string staged, Stage(dir_.path(), "name"));
    Put(staged + "/file", text);
  }

  const TempDir dir_;
};

TEST_F(StagingTest, ADirectoryAppearsOnlyWhenPutInPlace) {
  StageFile("new");
  EXPECT_THAT(Names(dir_.path()), ElementsAre(".tmp-name"));
  ASSERT_THAT(PutInPlace(dir_.path(), "name"), IsOk());
  EXPECT_THAT(Names(dir_.path()), ElementsAre("name"));
  EXPECT_EQ(Contents(dir_.path() / "name/file"), "new");
}

TEST_F(StagingTest, ReplacesADirectory) {
  dir_.Write("name/file", "old");
  dir_.Write("name/other", "old");
  StageFile("new");
  ASSERT_THAT(PutInPlace(dir_.path(), "name"), IsOk());
  EXPECT_THAT(Names(dir_.path()), ElementsAre("name"));
  EXPECT_THAT(Names(dir_.path() / "name"), ElementsAre("file"));
  EXPECT_EQ(Contents(dir_.path() / "name/file"), "new");
}

TEST_F(StagingTest, StageRemovesLeftovers) {
  dir_.Write(".tmp-name/left", "");
  StageFile("new");
  EXPECT_THAT(Names(dir_.path() / ".tmp-name"), ElementsAre("file"));
  Unstage(dir_.path(), "name");
  EXPECT_THAT(Names(dir_.path()), IsEmpty());
}

TEST_F(StagingTest, RequiresAStagedDirectory) {
  dir_.Write("name/file", "old");
  EXPECT_THAT(PutInPlace(dir_.path(), "name"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(".tmp-name")));
  EXPECT_EQ(Contents(dir_.path() / "name/file"), "old");
}

TEST_F(StagingTest, RemovesADirectory) {
  dir_.Write("name/file", "");
  dir_.Write(".tmp-name/left", "");
  ASSERT_THAT(RemoveWhole(dir_.path(), "name"), IsOk());
  EXPECT_THAT(Names(dir_.path()), IsEmpty());
  EXPECT_THAT(RemoveWhole(dir_.path(), "name"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("name'")));
}

TEST_F(StagingTest, ACrashBeforeTheRenamesKeepsTheOldDirectory) {
  dir_.Write("name/file", "old");
  dir_.Write(".tmp-name/file", "half of the n");
  ASSERT_THAT(RemoveLeftovers(dir_.path()), IsOk());
  EXPECT_THAT(Names(dir_.path()), ElementsAre("name"));
  EXPECT_EQ(Contents(dir_.path() / "name/file"), "old");
}

TEST_F(StagingTest, ACrashBetweenTheRenamesKeepsTheOldDirectory) {
  dir_.Write(".old-name/file", "old");
  dir_.Write(".tmp-name/file", "new");
  ASSERT_THAT(RemoveLeftovers(dir_.path()), IsOk());
  EXPECT_THAT(Names(dir_.path()), ElementsAre("name"));
  EXPECT_EQ(Contents(dir_.path() / "name/file"), "old");
}

TEST_F(StagingTest, ACrashAfterTheRenamesKeepsTheNewDirectory) {
  dir_.Write(".old-name/file", "old");
  dir_.Write("name/file", "new");
  ASSERT_THAT(RemoveLeftovers(dir_.path()), IsOk());
  EXPECT_THAT(Names(dir_.path()), ElementsAre("name"));
  EXPECT_EQ(Contents(dir_.path() / "name/file"), "new");
}

TEST_F(StagingTest, RemovesOnlyLeftovers) {
  dir_.Write(".hidden/file", "");
  dir_.Write("other/file", "");
  ASSERT_THAT(RemoveLeftovers(dir_.path()), IsOk());
  EXPECT_THAT(Names(dir_.path()), testing::UnorderedElementsAre(".hidden", "other"));
}

}  // namespace
}  // namespace braid
