#include "server/storage/versions/version_store.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/models/repository.h"
#include "server/storage/sealed_directory.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const VersionOrigin kOrigin = {"fashion",
                               "id",
                               "somebody",
                               120,
                               131,
                               "sum",
                               "step-000000120-sequence-000000131",
                               absl::FromUnixMicros(1'700'000'000'123'456)};

class VersionStoreTest : public ::testing::Test {
 protected:
  VersionStore Open() const {
    absl::StatusOr<VersionStore> opened = VersionStore::Open(dir_.path());
    EXPECT_THAT(opened, IsOk());
    return *std::move(opened);
  }
  absl::Status Write(const std::string& model, int64_t version) const {
    return versions_.Write(model, version, kOrigin, {FileOf("model.pt", "weights")});
  }
  std::vector<int64_t> Versions(const std::string& model) const {
    const absl::StatusOr<std::vector<int64_t>> versions = versions_.Versions(model);
    EXPECT_THAT(versions, IsOk());
    return versions.value_or(std::vector<int64_t>());
  }

  const TempDir dir_;
  const std::filesystem::path root_ = dir_.path() / "models";
  const VersionStore versions_ = Open();
};

TEST_F(VersionStoreTest, ReadsWhatWasWritten) {
  ASSERT_THAT(Write("my model", 2), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const StoredVersion read, Open().Read("my model", 2));
  EXPECT_EQ(read.version, 2);
  EXPECT_EQ(read.model_path, root_ / "my model" / "2" / "model.pt");
  EXPECT_EQ(Contents(read.model_path), "weights");
  BRAID_ASSERT_OK_AND_ASSIGN(const VersionOrigin quick, Open().ReadOrigin("my model", 2));
  for (const VersionOrigin& origin : {read.origin, quick}) {
    EXPECT_EQ(origin.trainer, kOrigin.trainer);
    EXPECT_EQ(origin.last_operator, kOrigin.last_operator);
    EXPECT_EQ(origin.step, kOrigin.step);
    EXPECT_EQ(origin.sequence, kOrigin.sequence);
    EXPECT_EQ(origin.checkpoint, kOrigin.checkpoint);
    EXPECT_EQ(origin.created, kOrigin.created);
  }
}

TEST_F(VersionStoreTest, TheOriginIsAFileOfItsOwn) {
  ASSERT_THAT(Write("m", 1), IsOk());
  const nlohmann::json origin = nlohmann::json::parse(Contents(root_ / "m/1/origin.json"));
  EXPECT_EQ(origin["trainer"], "fashion");
  EXPECT_EQ(origin["sequence"], 131);
}

TEST_F(VersionStoreTest, IsARepository) {
  ASSERT_THAT(Write("m", 1), IsOk());
  ASSERT_THAT(Write("m", 12), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<RepositoryEntry> entries, ScanRepository(root_));
  ASSERT_THAT(entries, SizeIs(1));
  ASSERT_THAT(entries[0].versions, SizeIs(2));
  EXPECT_THAT(FindModelFile(entries[0].versions[1], ""), IsOk());
}

TEST_F(VersionStoreTest, ListsModelsAndVersions) {
  for (const int64_t version : {10, 9, 1}) {
    ASSERT_THAT(Write("b", version), IsOk());
  }
  ASSERT_THAT(Write("a", 3), IsOk());
  dir_.Write("models/c/notes/file", "");
  dir_.Write("models/b/011/model.pt", "");
  EXPECT_THAT(Versions("b"), ElementsAre(1, 9, 10));
  EXPECT_THAT(Versions("c"), IsEmpty());
  EXPECT_THAT(Versions("unknown"), IsEmpty());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> models, versions_.Models());
  EXPECT_THAT(models, ElementsAre("a", "b"));
}

TEST_F(VersionStoreTest, DoesNotReplaceAVersion) {
  ASSERT_THAT(Write("m", 1), IsOk());
  EXPECT_THAT(Write("m", 1),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("version 1 already exists")));
}

TEST_F(VersionStoreTest, RemovesAVersion) {
  ASSERT_THAT(Write("m", 1), IsOk());
  ASSERT_THAT(Write("m", 2), IsOk());
  ASSERT_THAT(versions_.Remove("m", 1), IsOk());
  EXPECT_THAT(Names(root_ / "m"), ElementsAre("2"));
  EXPECT_THAT(versions_.Remove("m", 1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("m/1'")));
}

TEST_F(VersionStoreTest, DetectsDamage) {
  ASSERT_THAT(Write("m", 1), IsOk());
  FlipByte(root_ / "m/1/model.pt", 3);
  EXPECT_THAT(versions_.Read("m", 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m/1/model.pt'")));
  EXPECT_THAT(Open().ReadOrigin("m", 1), IsOk());
  FlipByte(root_ / "m/1/origin.json", 3);
  EXPECT_THAT(versions_.ReadOrigin("m", 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m/1/origin.json'")));
  std::filesystem::remove(root_ / "m/1/manifest.json");
  EXPECT_THAT(versions_.Read("m", 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest.json': missing")));
}

TEST_F(VersionStoreTest, RemembersOriginsUntilTheVersionIsRemovedOrWrittenAgain) {
  ASSERT_THAT(Write("m", 1), IsOk());
  ASSERT_THAT(versions_.ReadOrigin("m", 1), IsOk());
  FlipByte(root_ / "m/1/origin.json", 3);
  EXPECT_THAT(versions_.ReadOrigin("m", 1), IsOk());
  ASSERT_THAT(versions_.Remove("m", 1), IsOk());
  EXPECT_THAT(versions_.ReadOrigin("m", 1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  ASSERT_THAT(Write("m", 1), IsOk());
  FlipByte(root_ / "m/1/origin.json", 3);
  EXPECT_THAT(versions_.ReadOrigin("m", 1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
}

TEST_F(VersionStoreTest, RejectsUnknownVersionsAndInvalidNames) {
  EXPECT_THAT(versions_.Read("m", 1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("m/1'")));
  EXPECT_THAT(versions_.ReadOrigin("m", -1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("m/-1'")));
  for (const char* name : {"", "..", "a/b", ".hidden"}) {
    EXPECT_THAT(Write(name, 1), RefusesField("model", HasSubstr("invalid model name")));
    EXPECT_THAT(versions_.Versions(name), RefusesField("model", HasSubstr("invalid model name")));
    EXPECT_THAT(versions_.Read(name, 1), RefusesField("model", HasSubstr("invalid model name")));
  }
}

TEST_F(VersionStoreTest, IgnoresLeftoversOfACrash) {
  ASSERT_THAT(Write("m", 1), IsOk());
  dir_.Write("models/m/.tmp-2/model.pt", "half");
  EXPECT_THAT(Versions("m"), ElementsAre(1));
  Open();
  EXPECT_THAT(Names(root_ / "m"), ElementsAre("1"));
}

TEST_F(VersionStoreTest, AFullDiskCreatesNoVersion) {
  {
    const FileSizeLimit limit(4);
    EXPECT_THAT(Write("m", 1),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("model.pt'")));
  }
  EXPECT_THAT(Names(root_ / "m"), IsEmpty());
  EXPECT_THAT(Write("m", 1), IsOk());
}

}  // namespace
}  // namespace braid
