#include "server/rpc/data/data_messages.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataMessagesTest : public ::testing::Test {
 protected:
  DataMessagesTest() { dir_.Write("root/t.csv", "id,name\n1,a\n2,b\n"); }

  const TempDir dir_;
  const DataDirectories directories_{{dir_.path() / "root"}, dir_.path()};
};

TEST_F(DataMessagesTest, DescribesADataset) {
  braid::v1::GetDatasetRequest request;
  request.set_path("t.csv");
  braid::v1::GetDatasetResponse response;
  ASSERT_THAT(DescribeDataset(directories_, request, &response), IsOk());
  const braid::v1::Dataset& dataset = response.dataset();
  EXPECT_EQ(dataset.path(), "t.csv");
  EXPECT_EQ(dataset.format(), "CSV");
  EXPECT_FALSE(dataset.has_rows());
  ASSERT_EQ(dataset.columns_size(), 2);
  EXPECT_EQ(dataset.columns(0).name(), "id");
  EXPECT_EQ(dataset.columns(0).type(), "int64");
  EXPECT_EQ(dataset.columns(0).datatype(), "INT64");
  EXPECT_EQ(dataset.columns(0).shape_size(), 0);
  EXPECT_EQ(dataset.columns(1).type(), "string");
  EXPECT_EQ(dataset.columns(1).datatype(), "");
  request.set_path("../t.csv");
  EXPECT_THAT(DescribeDataset(directories_, request, &response),
              RefusesField("path", HasSubstr("leaves the data roots")));
}

TEST_F(DataMessagesTest, ListsDatasets) {
  braid::v1::ListDatasetsResponse response;
  ASSERT_THAT(ListDatasets(directories_, {}, &response), IsOk());
  ASSERT_EQ(response.entries_size(), 1);
  EXPECT_EQ(response.entries(0).name(), "t.csv");
  EXPECT_EQ(response.entries(0).bytes(), 16);
  EXPECT_FALSE(response.entries(0).is_directory());
}

TEST_F(DataMessagesTest, PreviewsADataset) {
  braid::v1::PreviewDatasetRequest request;
  request.set_path("t.csv");
  request.add_columns("name");
  braid::v1::PreviewDatasetResponse response;
  ASSERT_THAT(PreviewDataset(directories_, request, &response), IsOk());
  EXPECT_EQ(response.dataset().columns_size(), 2);
  EXPECT_THAT(response.rows(), ElementsAre(R"({"name":"a"})", R"({"name":"b"})"));
}

TEST_F(DataMessagesTest, NamesTheInvalidFieldOfAPreview) {
  braid::v1::PreviewDatasetRequest request;
  request.set_path("t.csv");
  request.set_rows(1001);
  braid::v1::PreviewDatasetResponse response;
  EXPECT_THAT(PreviewDataset(directories_, request, &response),
              RefusesField("rows", HasSubstr("expected 0 to 1000")));
  request.set_rows(1);
  request.add_columns("label");
  EXPECT_THAT(PreviewDataset(directories_, request, &response),
              RefusesField("columns", HasSubstr("unknown column 'label'")));
}

TEST(ReadManifestTest, ReadsFilesAndChecksums) {
  braid::v1::StartDatasetUploadRequest request;
  request.set_dataset("set");
  braid::v1::DatasetFile* const file = request.add_files();
  file->set_path("a.npy");
  file->set_bytes(3);
  file->set_sha256(Sha256Hex(Sha256("abc")));
  BRAID_ASSERT_OK_AND_ASSIGN(const DatasetManifest manifest, ReadManifest(request));
  EXPECT_EQ(manifest.dataset, "set");
  ASSERT_EQ(manifest.files.size(), 1u);
  EXPECT_EQ(manifest.files[0].path, "a.npy");
  EXPECT_EQ(manifest.files[0].bytes, 3);
  EXPECT_EQ(manifest.files[0].sha256, Sha256("abc"));
  file->set_sha256("abc");
  EXPECT_THAT(ReadManifest(request),
              RefusesField("files[0].sha256", HasSubstr("'abc' (expected 64 hexadecimal digits)")));
}

}  // namespace
}  // namespace braid
