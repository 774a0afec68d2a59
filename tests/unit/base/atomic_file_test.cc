#include "server/base/atomic_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(WriteFileAtomicallyTest, WritesAndReplaces) {
  const TempDir dir;
  const fs::path path = dir.path() / "ready.json";
  EXPECT_THAT(WriteFileAtomically(path, "first, and longer"), IsOk());
  EXPECT_THAT(WriteFileAtomically(path, "second"), IsOk());
  EXPECT_EQ(Read(path), "second");
}

TEST(WriteFileAtomicallyTest, LeavesNoTemporaryFile) {
  const TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir.path() / "ready.json", "text"), IsOk());
  const auto files = fs::directory_iterator(dir.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(WriteFileAtomicallyTest, ReportsAFileThatCannotBeWritten) {
  const TempDir dir;
  EXPECT_THAT(WriteFileAtomically(dir.path() / "missing" / "ready.json", "text"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing/ready.json")));
}

TEST(WriteFileAtomicallyTest, AFailedRenameLeavesNoFile) {
  const TempDir dir;
  const fs::path taken = dir.path() / "taken";
  fs::create_directory(taken);
  fs::create_directory(taken / "child");
  EXPECT_FALSE(WriteFileAtomically(taken, "text").ok());
  const auto files = fs::directory_iterator(dir.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace braid
