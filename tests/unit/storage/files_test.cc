#include "server/storage/files.h"

#include <cerrno>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/file_error.h"
#include "server/storage/input_file.h"
#include "server/storage/names.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FileErrorTest, ReportsExhaustedSpaceAsResourceExhausted) {
  for (const int code : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_THAT(FileError(code, "write", "/x"),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot write '/x'")));
  }
  EXPECT_THAT(FileError(EIO, "read", "/x"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/x")));
  EXPECT_THAT(FileError(ENOENT, "read", "/x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/x")));
}

TEST(MakeDirectoriesTest, CreatesMissingParents) {
  const TempDir dir;
  const fs::path deep = dir.path() / "a" / "b" / "c";
  EXPECT_THAT(MakeDirectories(deep), IsOk());
  EXPECT_THAT(MakeDirectories(deep), IsOk());
  EXPECT_THAT(MakeDirectories((dir.path() / "d" / "").string()), IsOk());
  EXPECT_TRUE(fs::is_directory(deep));
  EXPECT_TRUE(fs::is_directory(dir.path() / "d"));
}

TEST(MakeDirectoriesTest, ReportsAFileInThePath) {
  const TempDir dir;
  dir.Write("file", "");
  EXPECT_THAT(MakeDirectories(dir.path() / "file"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("file'")));
  EXPECT_THAT(MakeDirectories(dir.path() / "file" / "below"), testing::Not(IsOk()));
}

TEST(RemoveTreeTest, DoesNotFollowLinks) {
  const TempDir dir;
  dir.Write("tree/a/b/file", "");
  dir.Write("tree/.hidden", "");
  dir.Write("other/file", "");
  fs::create_directory_symlink(dir.path() / "other", dir.path() / "tree" / "link");
  EXPECT_THAT(RemoveTree(dir.path() / "tree"), IsOk());
  EXPECT_THAT(RemoveTree(dir.path() / "tree"), IsOk());
  EXPECT_THAT(Names(dir.path()), ElementsAre("other"));
  EXPECT_TRUE(fs::exists(dir.path() / "other" / "file"));
  EXPECT_THAT(RemoveTree(dir.path() / "other" / "file"), IsOk());
  EXPECT_FALSE(fs::exists(dir.path() / "other" / "file"));
}

TEST(WriteFileDurablyTest, ReplacesTheFileAndLeavesNoOther) {
  const TempDir dir;
  EXPECT_THAT(WriteFileDurably(dir.path() / "file", "first, and longer"), IsOk());
  EXPECT_THAT(WriteFileDurably(dir.path() / "file", "second"), IsOk());
  EXPECT_EQ(Contents(dir.path() / "file"), "second");
  EXPECT_THAT(Names(dir.path()), ElementsAre("file"));
}

TEST(WriteFileDurablyTest, KeepsTheOldFileIfTheDiskIsFull) {
  const TempDir dir;
  dir.Write("file", "old");
  {
    const FileSizeLimit limit(100);
    EXPECT_THAT(WriteFileDurably(dir.path() / "file", std::string(1000, 'x')),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("file.tmp'")));
  }
  EXPECT_EQ(Contents(dir.path() / "file"), "old");
  EXPECT_THAT(Names(dir.path()), ElementsAre("file"));
}

TEST(ListDirectoriesTest, ListsDirectoriesSorted) {
  const TempDir dir;
  dir.Write("b/file", "");
  dir.Write(".a/file", "");
  dir.Write("c", "");
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListDirectories(dir.path()));
  EXPECT_THAT(names, ElementsAre(".a", "b"));
  EXPECT_THAT(ListDirectories(dir.path() / "missing"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

TEST(ReadFileTest, RejectsFilesBeyondTheLimit) {
  const TempDir dir;
  dir.Write("file", "12345");
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(dir.path() / "file", 5));
  EXPECT_EQ(text, "12345");
  EXPECT_THAT(ReadFile(dir.path() / "file", 4),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("5 bytes")));
  EXPECT_THAT(ReadFile(dir.path(), 4),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not a regular file")));
}

TEST(InputFileTest, ReportsATruncatedFileAsDataLoss) {
  const TempDir dir;
  dir.Write("file", "12345");
  BRAID_ASSERT_OK_AND_ASSIGN(const InputFile file, InputFile::Open(dir.path() / "file"));
  Truncate(dir.path() / "file");
  std::string text(5, '\0');
  EXPECT_THAT(file.Read(0, text.data(), 5),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends at byte 4")));
}

TEST(NamesTest, RecognizesPlainNames) {
  for (const char* name : {"a", "A-1_b.c", "..."}) {
    EXPECT_EQ(IsPlainName(name), name[0] != '.') << name;
  }
  EXPECT_TRUE(IsPlainName(std::string(128, 'x')));
  EXPECT_FALSE(IsPlainName(std::string(129, 'x')));
  for (const char* name : {"", ".", "..", ".tmp-x", "a/b", "a b", "a\\b", "\xC3\xA9"}) {
    EXPECT_FALSE(IsPlainName(name)) << name;
  }
}

TEST(NamesTest, RecognizesFolderNames) {
  for (const std::string& name : {std::string("my model"), std::string("\xC3\xA9")}) {
    EXPECT_TRUE(IsFolderName(name)) << name;
  }
  EXPECT_TRUE(IsFolderName(std::string(255, 'x')));
  EXPECT_FALSE(IsFolderName(std::string(256, 'x')));
  for (const std::string& name : {std::string(), std::string(".."), std::string("a/../b"),
                                  std::string("a\0b", 3), std::string(".hidden")}) {
    EXPECT_FALSE(IsFolderName(name)) << name;
  }
}

}  // namespace
}  // namespace braid
