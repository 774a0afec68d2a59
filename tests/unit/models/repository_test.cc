#include "server/models/repository.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
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

  static std::vector<int64_t> Numbers(const RepositoryEntry& entry) {
    std::vector<int64_t> numbers;
    for (const RepositoryEntry::Version& version : entry.versions) {
      numbers.push_back(version.version);
    }
    return numbers;
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
  ASSERT_THAT(entries[0].versions, SizeIs(1));
  EXPECT_EQ(entries[0].versions[0].version, 1);
  EXPECT_EQ(entries[0].versions[0].folder, dir_.path() / "a/1");
  EXPECT_EQ(entries[0].config_path, dir_.path() / "a/config.pbtxt");
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].config_path, "");
}

TEST_F(ScanRepositoryTest, SortsVersionsByNumber) {
  for (const char* version : {"9", "10", "2"}) {
    dir_.Write(std::string("m/") + version + "/model.pt", "");
  }
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(Numbers(entries[0]), ElementsAre(2, 9, 10));
}

TEST_F(ScanRepositoryTest, SkipsFoldersThatAreNotVersions) {
  for (const char* folder :
       {"0", "-1", "01", "+7", "8x", "best", "9.5", " 9", ".9", "99999999999999999999"}) {
    dir_.Write(std::string("m/") + folder + "/model.pt", "");
  }
  dir_.Write("m/3/model.pt", "");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(Numbers(entries[0]), ElementsAre(3));
}

TEST_F(ScanRepositoryTest, SkipsFilesNamedLikeVersions) {
  dir_.Write("m/1/model.pt", "");
  dir_.Write("m/2", "notes");
  const std::vector<RepositoryEntry> entries = Scan();
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_THAT(Numbers(entries[0]), ElementsAre(1));
}

TEST_F(ScanRepositoryTest, FindsConfiguredOrDefaultModelFile) {
  dir_.Write("m/1/model.pt", "");
  dir_.Write("m/1/model.pt2", "");
  dir_.Write("m/2/model.pt2", "");
  dir_.Write("m/3/net.pt", "");
  const std::vector<RepositoryEntry::Version> versions = Scan()[0].versions;
  EXPECT_EQ(*FindModelFile(versions[0], ""), dir_.path() / "m/1/model.pt");
  EXPECT_EQ(*FindModelFile(versions[1], ""), dir_.path() / "m/2/model.pt2");
  EXPECT_EQ(*FindModelFile(versions[2], "net.pt"), dir_.path() / "m/3/net.pt");
  EXPECT_THAT(
      FindModelFile(versions[2], ""),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("version 3 has no model.pt or model.pt2")));
  EXPECT_THAT(FindModelFile(versions[0], "net.pt"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("version 1 has no net.pt")));
}

TEST_F(ScanRepositoryTest, FindsOneModelByName) {
  dir_.Write("m/1/model.pt", "");
  EXPECT_THAT(Numbers(*ScanModel(dir_.path(), "m")), ElementsAre(1));
  EXPECT_THAT(ScanModel(dir_.path(), "other"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
  for (const std::string& name :
       {std::string("../m"), std::string("/etc"), std::string("m/1"), std::string(".."),
        std::string("."), std::string(""), std::string("m\0x", 3), std::string(300, 'm')}) {
    EXPECT_THAT(ScanModel(dir_.path(), name), RefusesField("model_name", HasSubstr("expected")))
        << name;
  }
}

TEST_F(ScanRepositoryTest, ModelFingerprintChangesWithFiles) {
  std::vector<std::string> seen;
  const auto changed = [&] {
    seen.push_back(ModelFingerprint(Scan()[0]));
    return std::count(seen.begin(), seen.end(), seen.back()) == 1;
  };
  dir_.Write("m/1/model.pt", "a");
  EXPECT_TRUE(changed());
  EXPECT_FALSE(changed());
  seen.pop_back();
  dir_.Write("m/1/model.pt", "ab");
  EXPECT_TRUE(changed());
  dir_.Write("m/config.pbtxt", "");
  EXPECT_TRUE(changed());
  dir_.Write("m/2/model.pt", "");
  EXPECT_TRUE(changed());
  dir_.Write("m/warmup/x", "");
  EXPECT_TRUE(changed());
}

TEST_F(ScanRepositoryTest, SkipsHiddenFilesAndFolders) {
  dir_.Write(".git/1/model.pt", "");
  dir_.Write("README.md", "");
  EXPECT_THAT(Scan(), IsEmpty());
}

TEST_F(ScanRepositoryTest, RejectsPathThatIsNotAFolder) {
  EXPECT_THAT(ScanRepository(dir_.path() / "missing"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
  dir_.Write("file", "");
  EXPECT_THAT(ScanRepository(dir_.path() / "file"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("file")));
}

}  // namespace
}  // namespace braid
