#include "server/storage/versions/version_choices.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const VersionChoices kChoices = {
    .pinned = 3,
    .newest = 5,
    .labels = {{"stable", 2}, {"canary", 5}},
    .used = 7,
    .reserved = {
        {.version = 6, .trainer_id = "a", .last_operator = "b", .sequence = 4, .history = "c"},
        {.version = 7}}};

TEST(VersionChoicesTest, AreReadAgain) {
  const TempDir dir;
  const std::string path = dir.path() / "serving.json";
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto file, VersionChoicesFile::Open(path));
    EXPECT_EQ(file->Read("m"), VersionChoices());
    ASSERT_THAT(file->Write("m", kChoices), IsOk());
    ASSERT_THAT(file->Write("n", {.labels = {{"stable", 1}}}), IsOk());
    ASSERT_THAT(file->Write("n", {}), IsOk());
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const auto file, VersionChoicesFile::Open(path));
  EXPECT_EQ(file->Read("m"), kChoices);
  EXPECT_EQ(file->Read("n"), VersionChoices());
}

TEST(VersionChoicesTest, AreInMemoryWithoutAPath) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto file, VersionChoicesFile::Open(""));
  ASSERT_THAT(file->Write("m", kChoices), IsOk());
  EXPECT_EQ(file->Read("m"), kChoices);
}

TEST(VersionChoicesTest, ReadsTheFileOfAnOlderServer) {
  const TempDir dir;
  dir.Write("serving.json", R"({"m": {"version": 1, "newest": 2}})");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto file,
                             VersionChoicesFile::Open(dir.path() / "serving.json"));
  EXPECT_EQ(file->Read("m"), (VersionChoices{.pinned = 1, .newest = 2}));
}

TEST(VersionChoicesTest, RejectsADamagedFile) {
  const TempDir dir;
  dir.Write("serving.json", "{\"m\":");
  EXPECT_THAT(VersionChoicesFile::Open(dir.path() / "serving.json"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("serving.json': not a JSON object")));
}

TEST(VersionChoicesTest, KeepTheirValuesIfTheFileCannotBeWritten) {
  const TempDir dir;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto file,
                             VersionChoicesFile::Open(dir.path() / "none" / "serving.json"));
  EXPECT_FALSE(file->Write("m", kChoices).ok());
  EXPECT_EQ(file->Read("m"), VersionChoices());
}

}  // namespace
}  // namespace braid
