#include "server/storage/trainer_directories.h"

#include <filesystem>
#include <string>
#include <vector>

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

class TrainerDirectoriesTest : public ::testing::Test {
 protected:
  TrainerDirectories Open() const {
    absl::StatusOr<TrainerDirectories> opened = TrainerDirectories::Open(dir_.path() / "data");
    EXPECT_THAT(opened, IsOk());
    return *std::move(opened);
  }
  std::vector<std::string> List() const {
    const absl::StatusOr<std::vector<std::string>> names = trainers_.List();
    EXPECT_THAT(names, IsOk());
    return names.value_or(std::vector<std::string>());
  }

  const TempDir dir_;
  const std::filesystem::path root_ = dir_.path() / "data" / "trainers";
  const TrainerDirectories trainers_ = Open();
};

TEST_F(TrainerDirectoriesTest, KeepsASpecForEachTrainer) {
  EXPECT_THAT(List(), IsEmpty());
  ASSERT_THAT(trainers_.WriteSpec("b", R"({"model": "m"})"), IsOk());
  ASSERT_THAT(trainers_.WriteSpec("a.1_x-Y", "{}"), IsOk());
  EXPECT_THAT(List(), ElementsAre("a.1_x-Y", "b"));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string spec, Open().ReadSpec("b"));
  EXPECT_EQ(spec, R"({"model": "m"})");
  EXPECT_THAT(Names(root_ / "b"), ElementsAre("trainer.json"));
}

TEST_F(TrainerDirectoriesTest, ANewSpecKeepsTheCheckpoints) {
  ASSERT_THAT(trainers_.WriteSpec("a", "{}"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string checkpoints, trainers_.CheckpointsOf("a"));
  EXPECT_EQ(checkpoints, root_ / "a" / "checkpoints");
  dir_.Write("data/trainers/a/checkpoints/x/file", "kept");
  ASSERT_THAT(trainers_.WriteSpec("a", R"({"new": 1})"), IsOk());
  EXPECT_EQ(Contents(checkpoints + "/x/file"), "kept");
  EXPECT_EQ(Contents(root_ / "a" / "trainer.json"), R"({"new": 1})");
}

TEST_F(TrainerDirectoriesTest, RemovesATrainer) {
  ASSERT_THAT(trainers_.WriteSpec("a", "{}"), IsOk());
  dir_.Write("data/trainers/a/checkpoints/x/file", "");
  ASSERT_THAT(trainers_.Remove("a"), IsOk());
  EXPECT_THAT(Names(root_), IsEmpty());
  EXPECT_THAT(trainers_.Remove("a"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("a'")));
  EXPECT_THAT(trainers_.ReadSpec("a"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("a/")));
}

TEST_F(TrainerDirectoriesTest, IgnoresLeftoversOfACrash) {
  dir_.Write("data/trainers/.tmp-a/trainer.json", "{");
  dir_.Write("data/trainers/file", "");
  dir_.Write("data/trainers/lost and found/file", "");
  EXPECT_THAT(List(), IsEmpty());
  Open();
  EXPECT_THAT(Names(root_), testing::UnorderedElementsAre("file", "lost and found"));
}

TEST_F(TrainerDirectoriesTest, AFullDiskCreatesNoTrainer) {
  {
    const FileSizeLimit limit(100);
    EXPECT_THAT(trainers_.WriteSpec("a", std::string(200, ' ')),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("trainer.json")));
  }
  EXPECT_THAT(Names(root_), IsEmpty());
}

TEST_F(TrainerDirectoriesTest, RejectsInvalidNames) {
  for (const char* name : {"", "..", "a/b", "/etc", ".tmp-a", "a b"}) {
    EXPECT_THAT(trainers_.WriteSpec(name, ""),
                RefusesField("name", HasSubstr("invalid trainer name")));
    EXPECT_THAT(trainers_.ReadSpec(name), RefusesField("name", HasSubstr("invalid trainer name")));
    EXPECT_THAT(trainers_.CheckpointsOf(name),
                RefusesField("name", HasSubstr("invalid trainer name")));
    EXPECT_THAT(trainers_.Remove(name), RefusesField("name", HasSubstr("invalid trainer name")));
  }
}

}  // namespace
}  // namespace braid
