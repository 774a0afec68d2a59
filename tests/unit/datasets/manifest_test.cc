#include "server/datasets/manifest.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

DatasetManifest WithPaths(const std::vector<std::string>& paths) {
  DatasetManifest manifest{.dataset = "set", .files = {}};
  for (const std::string& path : paths) {
    manifest.files.push_back({path, 3, Sha256("abc")});
  }
  return manifest;
}

TEST(DatasetManifest, AcceptsOneFileAndFolders) {
  EXPECT_THAT(CheckManifest(WithPaths({""})), IsOk());
  EXPECT_THAT(CheckManifest(WithPaths({"a.npy", "b/c.npy", "b/d e.npy", "größe", "..."})), IsOk());
}

TEST(DatasetManifest, RefusesPathsThatLeaveTheDataset) {
  for (const char* path : {"../x", "/etc/passwd", "a/../../b", "a/..", ".", "a//b", "a/", "./a",
                           "a\nb", "a\x7f", "\xff"}) {
    EXPECT_THAT(CheckManifest(WithPaths({"ok", path})),
                RefusesField("files[1].path", HasSubstr("expected")))
        << path;
  }
  EXPECT_THAT(CheckManifest(WithPaths({"ok", ""})),
              RefusesField("files[1].path", HasSubstr("without empty names")));
  EXPECT_THAT(CheckManifest(WithPaths({"ok", std::string("a\0b", 3)})),
              RefusesField("files[1].path", HasSubstr("control characters")));
  EXPECT_THAT(CheckManifest(WithPaths({"ok", std::string(256, 'a')})),
              RefusesField("files[1].path", HasSubstr("at most 255 bytes")));
}

TEST(DatasetManifest, RefusesPathsThatCollide) {
  EXPECT_THAT(CheckManifest(WithPaths({"a", "b", "a"})),
              RefusesField("files[2].path", HasSubstr("'a' is listed twice")));
  EXPECT_THAT(CheckManifest(WithPaths({"a/b/c", "a/b"})),
              RefusesField("files[0].path", HasSubstr("in the file 'a/b'")));
}

TEST(DatasetManifest, RefusesInvalidNames) {
  for (const char* name : {"", "..", ".hidden", "_skipped", "a/b", "/a", "a b", "a\n", "é"}) {
    EXPECT_THAT(CheckDatasetName(name), RefusesField("dataset", HasSubstr("invalid name"))) << name;
  }
  EXPECT_THAT(CheckDatasetName(std::string(129, 'a')), RefusesField("dataset", HasSubstr("128")));
  EXPECT_THAT(CheckDatasetName("Train-2_b.parquet"), IsOk());
}

TEST(DatasetManifest, RefusesNumbersOfFilesAndSizesOutOfRange) {
  EXPECT_THAT(CheckManifest(WithPaths({})), RefusesField("files", HasSubstr("0 files")));
  EXPECT_THAT(CheckManifest(WithPaths(std::vector<std::string>(kMaxDatasetFiles + 1, "a"))),
              RefusesField("files", HasSubstr("expected 1 to 100000")));
  DatasetManifest manifest = WithPaths({"a", "b"});
  manifest.files[1].bytes = -1;
  EXPECT_THAT(CheckManifest(manifest), RefusesField("files[1].bytes", HasSubstr("-1")));
  manifest.files[1].bytes = std::numeric_limits<int64_t>::max() - 2;
  EXPECT_THAT(CheckManifest(manifest), RefusesField("files[1].bytes", HasSubstr("2^63")));
  manifest.files[1].bytes = 0;
  EXPECT_THAT(CheckManifest(manifest), RefusesField("files[1].sha256", HasSubstr("empty file")));
}

TEST(DatasetManifest, TheIdOfAnUploadDependsOnNameAndFiles) {
  const DatasetManifest manifest = WithPaths({"a", "b"});
  EXPECT_EQ(UploadIdOf(manifest).size(), 64u);
  EXPECT_EQ(UploadIdOf(manifest), UploadIdOf(WithPaths({"a", "b"})));
  DatasetManifest other = manifest;
  other.dataset = "other";
  EXPECT_NE(UploadIdOf(manifest), UploadIdOf(other));
  other = manifest;
  other.files[1].sha256 = Sha256("abd");
  EXPECT_NE(UploadIdOf(manifest), UploadIdOf(other));
}

TEST(DatasetManifest, SurvivesStorage) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const StoredUpload read,
      ReadStoredUpload(WriteStoredUpload({WithPaths({"a", "größe/\"b\""}), true, "t"})));
  EXPECT_TRUE(read.overwrite);
  EXPECT_EQ(read.token, "t");
  EXPECT_EQ(UploadIdOf(read.manifest), UploadIdOf(WithPaths({"a", "größe/\"b\""})));
  for (const char* text : {"", "{}", "[]", "{\"dataset\":1}",
                           R"({"dataset":"a","overwrite":false,"files":[["a",1,"no"]]})"}) {
    EXPECT_THAT(ReadStoredUpload(text), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("stored")))
        << text;
  }
}

}  // namespace
}  // namespace braid
