#include "server/data/open_data_source.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/npy_header.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/remote/local_store.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OpenDataSourceTest : public ::testing::Test {
 protected:
  OpenDataSourceTest() { std::filesystem::create_directory(root_); }

  absl::StatusOr<std::unique_ptr<DataSource>> Open(const std::string& path) const {
    return OpenDataSource(path, {{root_}, dir_.path()}, "data.path");
  }
  void PutIds(const std::string& name, int64_t begin, int64_t end) const {
    WriteParquet(root_ / name, *MakeIds(begin, end));
  }
  void PutNpy(const std::string& name, const HostTensor& tensor) const {
    Put(root_ / name, FormatNpyHeader(tensor.type, tensor.shape).value() +
                          std::string(static_cast<const char*>(tensor.data), tensor.bytes));
  }

  const TempDir dir_;
  const std::filesystem::path root_ = dir_.path() / "root";
};

TEST_F(OpenDataSourceTest, StaysBelowTheRoots) {
  PutIds("ids.parquet", 0, 3);
  std::filesystem::create_directory(dir_.path() / "root-2");
  WriteParquet(dir_.path() / "root-2/ids.parquet", *MakeIds(0, 3));
  std::filesystem::create_symlink(dir_.path() / "root-2/ids.parquet", root_ / "link.parquet");
  EXPECT_THAT(Open("ids.parquet"), IsOk());
  EXPECT_THAT(Open("../root/ids.parquet"), IsOk());
  EXPECT_THAT(Open(root_ / "ids.parquet"), IsOk());
  for (const std::string path :
       {"../root-2/ids.parquet", "link.parquet", "/etc/passwd", "/no/such/file", "..", "x/../.."}) {
    EXPECT_THAT(Open(path), RefusesField("data.path", HasSubstr("leaves the data roots"))) << path;
  }
  const std::vector<std::string> both = {root_, dir_.path() / "root-2/"};
  EXPECT_THAT(OpenDataSource("link.parquet", {both, dir_.path()}, "data.path"), IsOk());
}

TEST_F(OpenDataSourceTest, DoesNotFollowLinksOfADirectoryOutOfTheRoots) {
  std::filesystem::create_directory(root_ / "parts");
  PutIds("ids.parquet", 0, 3);
  std::filesystem::create_symlink(root_ / "ids.parquet", root_ / "parts/inside.parquet");
  EXPECT_THAT(Open("parts"), IsOk());
  WriteParquet(dir_.path() / "secret.parquet", *MakeIds(0, 3));
  std::filesystem::create_symlink(dir_.path() / "secret.parquet", root_ / "parts/link.parquet");
  EXPECT_THAT(Open("parts"), RefusesField("data.path", HasSubstr("link.parquet' leaves")));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, ListData("parts", {root_}, "path"));
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].name, "inside.parquet");
}

TEST_F(OpenDataSourceTest, NamesTheFieldAndTheProblem) {
  EXPECT_THAT(Open("no.parquet"), StatusIs(absl::StatusCode::kNotFound,
                                           HasSubstr("data.path: 'no.parquet' does not exist")));
  Put(root_ / "notes.txt", "text");
  EXPECT_THAT(Open("notes.txt"), RefusesField("data.path", HasSubstr("expected Parquet")));
  EXPECT_THAT(Open(std::string("a\0b", 3)), RefusesField("data.path", HasSubstr("NUL")));
  EXPECT_THAT(OpenDataSource("x", {{}, ""}, "data.path"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--data_root")));
}

TEST_F(OpenDataSourceTest, ReadsTheTablesOfADirectoryInOrder) {
  std::filesystem::create_directory(root_ / "parts");
  PutIds("parts/part-1.parquet", 10, 20);
  PutIds("parts/part-0.parquet", 0, 10);
  PutIds("parts/part-2.parquet", 20, 25);
  Put(root_ / "parts/_manifest.json", "{}");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open("parts"));
  EXPECT_EQ(source->Rows().value(), 25);
  for (const int64_t first : {0, 9, 10, 15, 20, 24}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, ReadAll(source.get(), {.first_row = first}));
    EXPECT_EQ(Int64s(*batch, "id"), Count(first, 25));
  }
  WriteParquet(root_ / "parts/part-3.parquet", *MakeBatch({{"id", arrow::int32(), "[1]"}}));
  EXPECT_THAT(Open("parts"),
              RefusesField("data.path", HasSubstr("part-3.parquet': column 'id' has type int32 "
                                                  "(expected int64, as in '")));
}

TEST_F(OpenDataSourceTest, TakesTheArraysOfADirectoryAsColumns) {
  std::filesystem::create_directory(root_ / "arrays");
  PutNpy("arrays/y.npy", MakeHost<int64_t>("", {4}, {0, 1, 2, 3}));
  PutNpy("arrays/x.npy", MakeRows("", 4, 10));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open("arrays"));
  ASSERT_EQ(source->columns().size(), 2u);
  EXPECT_EQ(source->columns()[0].name, "x");
  EXPECT_EQ(source->columns()[0].row, (RowType{DataType::kFp32, {1}}));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto batch, ReadAll(source.get(), {.columns = {"y"}, .first_row = 1, .batch_rows = 2}));
  EXPECT_THAT(Int64s(*batch, "y"), ElementsAre(1, 2, 3));
  PutNpy("arrays/z.npy", MakeRows("", 3, 0));
  EXPECT_THAT(Open("arrays"),
              RefusesField("data.path", HasSubstr("array 'z' has 3 rows (expected 4")));
}

TEST_F(OpenDataSourceTest, LimitsTheBytesOfABatch) {
  // A sparse file.
  Put(root_ / "wide.npy", FormatNpyHeader(DataType::kFp32, {100, 100'000}).value());
  std::filesystem::resize_file(root_ / "wide.npy", kNpyHeaderBytes + 40'000'000);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open("wide.npy"));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto scan, source->Scan({}));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, scan->Next());
  // 16 MiB of rows with 400,000 bytes.
  EXPECT_EQ(batch->num_rows(), 41);
}

TEST_F(OpenDataSourceTest, RejectsMixedAndEmptyDirectories) {
  std::filesystem::create_directory(root_ / "mixed");
  EXPECT_THAT(Open("mixed"), RefusesField("data.path", HasSubstr("has no files")));
  PutIds("mixed/a.parquet", 0, 1);
  PutNpy("mixed/b.npy", MakeRows("", 1, 0));
  EXPECT_THAT(Open("mixed"), RefusesField("data.path", HasSubstr("only tables or only arrays")));
}

TEST_F(OpenDataSourceTest, ListsFilesOfKnownFormats) {
  std::filesystem::create_directory(root_ / "parts");
  PutIds("ids.parquet", 0, 3);
  Put(root_ / "notes.txt", "text");
  Put(root_ / ".hidden.csv", "a\n1\n");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, ListData("", {root_}, "path"));
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].name, "ids.parquet");
  EXPECT_EQ(listed[0].bytes,
            static_cast<int64_t>(std::filesystem::file_size(root_ / "ids.parquet")));
  EXPECT_EQ(listed[1].name, "parts");
  EXPECT_TRUE(listed[1].directory);
}

TEST_F(OpenDataSourceTest, ListsAllRoots) {
  const std::filesystem::path second = dir_.path() / "second";
  std::filesystem::create_directory(second);
  PutIds("ids.parquet", 0, 3);
  Put(second / "ids.parquet", "hidden by the first root");
  Put(second / "a.csv", "a\n1\n");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, ListData("", {root_, second}, "path"));
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].name, "a.csv");
  EXPECT_EQ(listed[1].name, "ids.parquet");
  EXPECT_EQ(listed[1].bytes,
            static_cast<int64_t>(std::filesystem::file_size(root_ / "ids.parquet")));
}

// Objects in buckets, which are folders of dir_.
class RemoteDataSourceTest : public OpenDataSourceTest {
 protected:
  absl::StatusOr<std::unique_ptr<DataSource>> OpenRemote(const std::string& path) const {
    return OpenDataSource(path, {{root_}, dir_.path(), &remote_}, "data.path");
  }

  const std::unique_ptr<ObjectStore> store_ = MakeLocalStore(dir_.path());
  // Behind a link, as a data directory may be.
  const std::unique_ptr<ObjectCopies> copies_ = [this] {
    std::filesystem::create_directory(dir_.path() / "copies");
    std::filesystem::create_symlink("copies", dir_.path() / "link");
    return ObjectCopies::Open(store_.get(), dir_.path() / "link", 10'000'000).value();
  }();
  const RemoteData remote_{{"bucket"}, store_.get(), copies_.get()};
};

TEST_F(RemoteDataSourceTest, NamesTheObjectInErrors) {
  dir_.Write("bucket/cat.jpg", "jpg");
  EXPECT_THAT(OpenRemote("s3://bucket/cat.jpg"),
              RefusesField("data.path", HasSubstr("unknown format of 's3://bucket/cat.jpg'")));
  dir_.Write("bucket/empty/cats/notes.txt", "text");
  EXPECT_THAT(OpenRemote("s3://bucket/empty"),
              RefusesField("data.path", HasSubstr("class folder 's3://bucket/empty/cats' has no")));
  dir_.Write("bucket/damaged.parquet", "PAR1 damaged");
  EXPECT_THAT(OpenRemote("s3://bucket/damaged.parquet"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("cannot read 's3://bucket/damaged.parquet'")));
}

TEST_F(RemoteDataSourceTest, NamesTheObjectInErrorsOfRows) {
  std::string text = "x\n";
  for (int row = 0; row < 600'000; ++row) {
    text += "1\n";  // more than the first block, which is read when the file is opened
  }
  dir_.Write("bucket/damaged.csv", text + "1,2\n");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, OpenRemote("s3://bucket/damaged.csv"));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto scan, source->Scan({}));
  absl::Status status;
  while (status.ok()) {
    const auto rows = scan->Next();
    ASSERT_TRUE(!rows.ok() || *rows != nullptr);
    status = rows.status();
  }
  EXPECT_THAT(status.message(), HasSubstr("cannot read 's3://bucket/damaged.csv'"));
}

}  // namespace
}  // namespace braid
