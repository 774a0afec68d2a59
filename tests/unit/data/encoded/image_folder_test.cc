#include "server/data/encoded/image_folder.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/open_data_source.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ImageFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }

  void PutImage(const std::string& name, const std::string& bytes = "jpg") const {
    fs::create_directories((root_ / name).parent_path());
    Put(root_ / name, bytes);
  }

  absl::StatusOr<std::unique_ptr<DataSource>> Open() const {
    return OpenDataSource("images", {{dir_.path()}, dir_.path()}, "path");
  }

  static std::vector<std::string> Texts(const arrow::RecordBatch& batch, const std::string& name) {
    const auto array = std::static_pointer_cast<arrow::StringArray>(batch.GetColumnByName(name));
    std::vector<std::string> texts;
    for (int64_t row = 0; row < array->length(); ++row) {
      texts.push_back(array->GetString(row));
    }
    return texts;
  }

  const TempDir dir_;
  const fs::path root_ = dir_.path() / "images";
};

TEST_F(ImageFolderTest, HasARowForEachImageOfEachClass) {
  PutImage("dog/2.PNG", "d2");
  PutImage("cat/b.jpg", "cb");
  PutImage("cat/a.jpeg", "ca");
  PutImage("cat/more/c.webp", "cc");
  PutImage("cat/notes.txt");
  PutImage("cat/.hidden.jpg");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_EQ(source->format(), "images");
  EXPECT_EQ(source->KnownRows(), 4);
  EXPECT_EQ(source->PathColumn("image"), "path");
  EXPECT_EQ(source->PathColumn("path"), "");
  EXPECT_TRUE(source->columns()[0].bytes);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(source.get(), {}));
  EXPECT_THAT(rows->schema()->field_names(), ElementsAre("image", "label", "class", "path"));
  EXPECT_THAT(Texts(*rows, "path"),
              ElementsAre("cat/a.jpeg", "cat/b.jpg", "cat/more/c.webp", "dog/2.PNG"));
  EXPECT_THAT(Texts(*rows, "class"), ElementsAre("cat", "cat", "cat", "dog"));
  EXPECT_THAT(Int64s(*rows, "label"), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(rows->GetColumnByName("image")->ToString(),
            arrow::json::ArrayFromJSONString(arrow::binary(), R"(["ca", "cb", "cc", "d2"])")
                .ValueOrDie()
                ->ToString());
}

TEST_F(ImageFolderTest, SortsFoldersBeforeFilesAsTorchvisionDoes) {
  for (const char* name : {"a/x/1.jpg", "a/x-y/1.jpg", "a/x/z/1.jpg", "a/zz.jpg"}) {
    PutImage(name);
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, ReadAll(source.get(), {.columns = {"path"}}));
  EXPECT_THAT(Texts(*rows, "path"),
              ElementsAre("a/zz.jpg", "a/x/1.jpg", "a/x-y/1.jpg", "a/x/z/1.jpg"));
}

TEST_F(ImageFolderTest, ReadsAFlatFolderWithoutLabels) {
  PutImage("2.jpg", "two");
  PutImage("1.jpg", "one");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows,
                             ReadAll(source.get(), {.first_row = 1, .batch_rows = 1}));
  EXPECT_THAT(rows->schema()->field_names(), ElementsAre("image", "path"));
  EXPECT_THAT(Texts(*rows, "path"), ElementsAre("2.jpg"));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto none, ReadAll(source.get(), {.first_row = 5}));
  EXPECT_EQ(none, nullptr);
}

TEST_F(ImageFolderTest, IdentityCoversNamesSizesAndTimes) {
  PutImage("cat/1.jpg", "a");
  const std::string first = Open().value()->Identity();
  EXPECT_EQ(Open().value()->Identity(), first);
  PutImage("cat/1.jpg", "ab");
  const std::string size = Open().value()->Identity();
  EXPECT_NE(size, first);
  fs::last_write_time(root_ / "cat/1.jpg",
                      fs::file_time_type::clock::now() - std::chrono::hours(1));
  const std::string time = Open().value()->Identity();
  EXPECT_NE(time, size);
  fs::rename(root_ / "cat/1.jpg", root_ / "cat/2.jpg");
  EXPECT_NE(Open().value()->Identity(), time);
}

TEST_F(ImageFolderTest, RejectsFoldersThatAreNotClasses) {
  fs::create_directories(root_ / "empty");
  EXPECT_THAT(Open(), RefusesField("path", HasSubstr("empty' has no images")));
  PutImage("empty/1.jpg");
  PutImage("1.jpg");
  EXPECT_THAT(Open(), RefusesField("path", HasSubstr("has images and the folder 'empty'")));
}

TEST_F(ImageFolderTest, IgnoresFilesBesideClassFoldersAsTorchvisionDoes) {
  PutImage("cat/1.jpg");
  Put(root_ / "README.txt", "cats");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_EQ(source->KnownRows(), 1);
}

TEST_F(ImageFolderTest, NamesTheFileThatIsNotAnImage) {
  PutImage("0.jpg");
  Put(root_ / "a.txt", "text");
  EXPECT_THAT(Open(), RefusesField("path", HasSubstr("a.txt' is not an image (expected .jpg")));
}

TEST_F(ImageFolderTest, LinkToNowhereIsARowThatCannotBeRead) {
  PutImage("cat/1.jpg");
  fs::create_symlink(root_ / "cat/none.jpg", root_ / "cat/2.jpg");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_EQ(source->KnownRows(), 2);
  EXPECT_THAT(ReadAll(source.get(), {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("2.jpg' does not exist")));
  const std::string identity = source->Identity();
  PutImage("cat/none.jpg");
  EXPECT_NE(Open().value()->Identity(), identity);
}

TEST_F(ImageFolderTest, FollowsNoLinkOutOfTheRoots) {
  PutImage("cat/1.jpg");
  const TempDir other;
  Put(other.path() / "secret.jpg", "x");
  fs::create_symlink(other.path() / "secret.jpg", root_ / "cat/2.jpg");
  EXPECT_THAT(Open(), RefusesField("path", HasSubstr("leaves the data roots")));
  fs::remove(root_ / "cat/2.jpg");
  fs::create_directory_symlink(root_ / "cat", root_ / "cat/loop");
  EXPECT_THAT(Open(), RefusesField("path", HasSubstr("folders deep")));
}

TEST_F(ImageFolderTest, LeavesTablesAndArraysToOtherSources) {
  WriteParquet(root_ / "ids.parquet", *MakeIds(0, 3));
  EXPECT_EQ(Open().value()->format(), "Parquet");
  PutImage("1.jpg");
  EXPECT_THAT(Open(), RefusesField("path", HasSubstr("a directory with images only")));
}

TEST_F(ImageFolderTest, KnowsImagesByTheirSuffix) {
  EXPECT_TRUE(IsImageFile("a.JPG"));
  EXPECT_TRUE(IsImageFile("x/y.WebP"));
  EXPECT_FALSE(IsImageFile("a.jpg.txt"));
}

}  // namespace
}  // namespace braid
