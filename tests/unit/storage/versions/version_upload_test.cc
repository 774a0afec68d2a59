#include "server/storage/versions/version_upload.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/versions/version_store.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class VersionUploadTest : public ::testing::Test {
 protected:
  std::unique_ptr<VersionUpload> Start() const {
    auto upload = store_->NewUpload();
    EXPECT_THAT(upload, IsOk());
    return *std::move(upload);
  }

  const TempDir dir_;
  const absl::StatusOr<VersionStore> store_ = VersionStore::Open(dir_.path());
};

TEST_F(VersionUploadTest, BecomesAVersion) {
  const auto upload = Start();
  ASSERT_THAT(upload->Append("model.pt2", "gra"), IsOk());
  ASSERT_THAT(upload->Append("model.safetensors", "weights"), IsOk());
  ASSERT_THAT(upload->Append("model.pt2", "phs"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto files, upload->Finish());
  VersionOrigin origin;
  origin.created = absl::UnixEpoch();
  ASSERT_THAT(store_->Write("m", 1, origin, files), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const StoredVersion version, store_->Read("m", 1));
  EXPECT_EQ(version.origin.trainer, "");
  EXPECT_EQ(Contents(version.model_path), "graphs");
  EXPECT_EQ(Contents(dir_.path() / "models/m/1/model.safetensors"), "weights");
}

TEST_F(VersionUploadTest, RemovesItsFiles) {
  { ASSERT_THAT(Start()->Append("model.pt", "half"), IsOk()); }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path() / "uploads"));
  dir_.Write("uploads/of-a-crash/model.pt", "half");
  ASSERT_THAT(VersionStore::Open(dir_.path()), IsOk());
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "uploads"));
}

TEST_F(VersionUploadTest, RejectsOtherFiles) {
  const auto upload = Start();
  for (const char* name : {"", "../model.pt", "config.pbtxt", "origin.json"}) {
    EXPECT_THAT(upload->Append(name, "x"), RefusesField("file", HasSubstr("expected one of")));
  }
  EXPECT_THAT(upload->Finish(), RefusesField("file", HasSubstr("model.pt or model.pt2")));
}

TEST_F(VersionUploadTest, RejectsFilesOfDifferentFormats) {
  const auto upload = Start();
  ASSERT_THAT(upload->Append("model.pt", "module"), IsOk());
  ASSERT_THAT(upload->Append("model.safetensors", "weights"), IsOk());
  EXPECT_THAT(upload->Finish(), RefusesField("file", HasSubstr("only with model.pt2")));
}

}  // namespace
}  // namespace braid
