#include "server/models/repository.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ScanRepositoryTest : public ::testing::Test {
 protected:
  std::vector<RepositoryEntry> Scan() const {
    const auto entries = ScanRepository(dir_.path());
    EXPECT_THAT(entries, IsOk());
    return entries.ok() ? *entries : std::vector<RepositoryEntry>();
  }

  const TempDir dir_;
};

TEST_F(ScanRepositoryTest, ListsModelsByName) {
  dir_.Write("b/1/model.pt", "");
  dir_.Write("a/1/model.pt", "");
  dir_.Write("a/config.pbtxt", "");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].version, 1);
  EXPECT_EQ(entries[0].model_path, dir_.path() / "a/1/model.pt");
  EXPECT_EQ(entries[0].config_path, dir_.path() / "a/config.pbtxt");
  EXPECT_THAT(entries[0].status, IsOk());
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].config_path, "");
}

TEST_F(ScanRepositoryTest, TheNewestVersionIsTheHighestNumber) {
  for (const char* version : {"9", "10", "2"}) {
    dir_.Write(std::string("m/") + version + "/model.pt", "");
  }
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(entries[0].version, 10);
  EXPECT_EQ(entries[0].model_path, dir_.path() / "m/10/model.pt");
}

TEST_F(ScanRepositoryTest, FoldersThatAreNoNumberFromOneAreNoVersions) {
  for (const char* folder :
       {"0", "-1", "01", "+7", "8x", "best", "9.5", " 9", ".9", "99999999999999999999"}) {
    dir_.Write(std::string("m/") + folder + "/model.pt", "");
  }
  dir_.Write("m/3/model.pt", "");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(entries[0].version, 3);
}

TEST_F(ScanRepositoryTest, AFileWithANumberForItsNameIsNoVersion) {
  dir_.Write("m/1/model.pt", "");
  dir_.Write("m/2", "notes");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(entries[0].status, IsOk());
  EXPECT_EQ(entries[0].version, 1);
}

TEST_F(ScanRepositoryTest, AFolderWithoutVersionSaysSo) {
  std::filesystem::create_directory(dir_.path() / "m");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(entries[0].status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("<version>/model.pt")));
}

TEST_F(ScanRepositoryTest, AVersionWithoutModelSaysWhich) {
  dir_.Write("m/1/model.pt", "");
  dir_.Write("m/2/model.onnx", "");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(entries[0].status,
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("version 2 has neither model.pt nor model.pt2")));
}

TEST_F(ScanRepositoryTest, HiddenFoldersAndFilesArePassedOver) {
  dir_.Write(".git/1/model.pt", "");
  dir_.Write("README.md", "");
  EXPECT_THAT(Scan(), IsEmpty());
}

TEST_F(ScanRepositoryTest, WhatIsNoFolderIsRefused) {
  EXPECT_THAT(ScanRepository(dir_.path() / "missing"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
  dir_.Write("file", "");
  EXPECT_THAT(ScanRepository(dir_.path() / "file"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("file")));
}

}  // namespace
}  // namespace braid
