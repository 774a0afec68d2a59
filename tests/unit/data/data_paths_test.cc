#include "server/data/data_paths.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class OutputPathTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Resolve(const std::string& path) const {
    return ResolveOutputPath(path, root_, "output.path");
  }

  const TempDir dir_;
  const std::string root_ = dir_.path() / "outputs";
};

TEST_F(OutputPathTest, StartsAtTheRoot) {
  // The root need not exist.
  EXPECT_EQ(Resolve("scores.parquet").value(), root_ + "/scores.parquet");
  std::filesystem::create_directory(root_);
  EXPECT_EQ(Resolve("a/./b/../scores.npy").value(), root_ + "/a/scores.npy");
  EXPECT_EQ(Resolve(root_ + "/scores.jsonl").value(), root_ + "/scores.jsonl");
}

TEST_F(OutputPathTest, KeepsTheSlashOfAFolder) {
  std::filesystem::create_directories(root_ + "/old");
  EXPECT_EQ(Resolve("new/").value(), root_ + "/new/");
  EXPECT_EQ(Resolve("old/").value(), root_ + "/old/");
}

TEST_F(OutputPathTest, DoesNotLeaveTheRoot) {
  std::filesystem::create_directory(root_);
  std::filesystem::create_symlink(dir_.path(), root_ + "/link");
  for (const std::string path :
       {"", ".", "./", "../x.npy", "a/../../x.npy", "/x.npy", "link/x.npy"}) {
    EXPECT_THAT(Resolve(path), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("leaves the output directory")))
        << path;
  }
  EXPECT_THAT(Resolve(std::string("a\0b", 3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("NUL")));
}

TEST_F(OutputPathTest, NamesPathsThatTheFileSystemCannotHave) {
  std::filesystem::create_directory(root_);
  std::filesystem::create_symlink("loop", root_ + "/loop");
  const std::string name(256, 'a');
  std::string path = "x";
  while (path.size() < 4096) {
    path += "/x";
  }
  for (const std::string& too_long : {name, "new/" + name, path}) {
    EXPECT_THAT(Resolve(too_long), RefusesField("output.path", HasSubstr("is too long")));
    EXPECT_THAT(ResolveDataPath(too_long, {root_}, "data.path"),
                RefusesField("data.path", HasSubstr("is too long")));
  }
  for (const std::string loop : {"loop", "loop/x.npy"}) {
    EXPECT_THAT(Resolve(loop), RefusesField("output.path", HasSubstr("symlink loop")));
    EXPECT_THAT(ResolveDataPath(loop, {root_ + "/"}, "data.path"),
                RefusesField("data.path", HasSubstr("symlink loop")));
  }
  // Does not tell what is elsewhere.
  std::filesystem::create_symlink("loop", dir_.path() / "loop");
  EXPECT_THAT(ResolveDataPath("../loop", {root_}, "data.path"),
              RefusesField("data.path", HasSubstr("'../loop' leaves the data roots")));
}

TEST(DataPathTest, NamesAllDirectoriesOfAMissingFile) {
  const TempDir dir;
  const std::string a = dir.path() / "a";
  const std::string b = dir.path() / "b";
  std::filesystem::create_directory(a);
  std::filesystem::create_directory(b);
  EXPECT_THAT(
      ResolveDataPath("x", {a}, "path"),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("'x' does not exist (expected a file or directory in " + a + ")")));
  EXPECT_THAT(ResolveDataPath("x", {a, b}, "path"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("in " + a + " or " + b + ")")));
}

TEST(DataPathTest, WithoutRootsNamesTheFlags) {
  EXPECT_THAT(ResolveDataPath("", {}, "directory"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--data_root=DIR, or a path s3://BUCKET/KEY below --s3_allow")));
}

TEST(DataPathTest, StartsAtTheFirstRootInWhichItExists) {
  const TempDir dir;
  dir.Write("one/both.csv", "");
  dir.Write("two/both.csv", "");
  dir.Write("two/sub/late.csv", "");
  dir.Write("one.csv", "");
  const std::string one = dir.path() / "one";
  const std::string two = dir.path() / "two";
  const auto resolve = [&](const std::string& path) {
    return ResolveDataPath(path, {one, two}, "path");
  };
  EXPECT_EQ(resolve("both.csv").value(), one + "/both.csv");
  EXPECT_EQ(resolve("sub/late.csv").value(), two + "/sub/late.csv");
  EXPECT_EQ(resolve(two + "/both.csv").value(), two + "/both.csv");
  EXPECT_EQ(resolve("").value(), one);
  EXPECT_THAT(resolve("none.csv"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("does not exist")));
  EXPECT_THAT(resolve("../one.csv"), RefusesField("path", HasSubstr("leaves the data roots")));
  // A link in a later root does not tell what is elsewhere.
  std::filesystem::create_symlink(dir.path(), dir.path() / "two/link");
  EXPECT_THAT(resolve("link/one.csv"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("does not exist")));
  EXPECT_THAT(resolve("link/none.csv"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("does not exist")));
}

}  // namespace
}  // namespace braid
