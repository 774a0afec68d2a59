#include "server/data/encoded/file_reader.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(FileReader, ReadsFilesRelativeToItsDirectory) {
  const TempDir dir;
  fs::create_directories(dir.path() / "data/images");
  Put(dir.path() / "data/images/1.jpg", "bytes");
  const FileReader reader(dir.path() / "data", {dir.path()});
  EXPECT_EQ(reader.Read("images/1.jpg").value(), "bytes");
  EXPECT_EQ(reader.Read((dir.path() / "data/images/1.jpg").string()).value(), "bytes");
}

TEST(FileReader, ReadsNothingOutsideOfTheRoots) {
  const TempDir dir;
  fs::create_directories(dir.path() / "data");
  Put(dir.path() / "secret", "x");
  const FileReader reader(dir.path() / "data", {dir.path() / "data"});
  for (const char* path : {"../secret", "/etc/hostname"}) {
    EXPECT_THAT(reader.Read(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leaves the data roots")));
  }
  fs::create_symlink(dir.path() / "secret", dir.path() / "data/link");
  EXPECT_THAT(reader.Read("link"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leaves")));
}

TEST(FileReader, NamesTheFileInErrors) {
  const TempDir dir;
  const FileReader reader(dir.path(), {dir.path()});
  EXPECT_THAT(reader.Read("none.jpg"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'none.jpg' does not exist")));
  fs::create_directories(dir.path() / "folder");
  EXPECT_THAT(reader.Read("folder"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
  Put(dir.path() / "large", "");
  fs::resize_file(dir.path() / "large", FileReader::kMaxBytes + 1);
  EXPECT_THAT(reader.Read("large"), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("expected at most 268435456")));
}

}  // namespace
}  // namespace braid
