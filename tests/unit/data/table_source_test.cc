#include "server/data/table_source.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TableSourceTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const { return dir_.path() / name; }

  absl::StatusOr<std::unique_ptr<DataSource>> Open(const std::string& name) const {
    BRAID_ASSIGN_OR_RETURN(auto file, DataFile::Open(PathOf(name)));
    return OpenTableSource(std::move(file));
  }

  // 1,000 rows of MakeIds() in each format.
  void WriteTables() const {
    WriteParquet(PathOf("ids.parquet"), *MakeIds(0, 1000), /*row_group_rows=*/300);
    WriteIpc(PathOf("ids.arrow"), {MakeIds(0, 400), MakeIds(400, 400), MakeIds(400, 1000)});
    std::string csv = "id,name\n";
    for (int i = 0; i < 1000; ++i) {
      csv += std::to_string(i) + ",\"row " + std::to_string(i) + "\"\n";
    }
    Put(PathOf("ids.csv"), csv);
  }

  const TempDir dir_;
};

TEST_F(TableSourceTest, ReadsFromAnyRow) {
  WriteTables();
  for (const char* name : {"ids.parquet", "ids.arrow", "ids.csv"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open(name));
    EXPECT_THAT(source->Rows(), IsOk());
    EXPECT_EQ(source->Rows().value(), 1000) << name;
    for (const int64_t first : {0, 1, 299, 300, 301, 400, 999}) {
      BRAID_ASSERT_OK_AND_ASSIGN(
          const auto batch,
          ReadAll(source.get(), {.columns = {"id"}, .first_row = first, .batch_rows = 64}));
      EXPECT_EQ(Int64s(*batch, "id"), Count(first, 1000)) << name << " from row " << first;
    }
    BRAID_ASSERT_OK_AND_ASSIGN(const auto none, ReadAll(source.get(), {.first_row = 1000}));
    EXPECT_EQ(none, nullptr) << name;
  }
}

TEST_F(TableSourceTest, ReadsColumnsInTheRequestedOrder) {
  WriteTables();
  for (const char* name : {"ids.parquet", "ids.arrow"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open(name));
    EXPECT_EQ(source->columns()[1].row, (RowType{DataType::kFp32, {2}})) << name;
    BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, ReadAll(source.get(), {.columns = {"x", "id"}}));
    EXPECT_THAT(batch->schema()->field_names(), ElementsAre("x", "id"));
    EXPECT_TRUE(batch->column(0)->Equals(MakeIds(0, 1000)->column(1))) << name;
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const auto csv, Open("ids.csv"));
  EXPECT_EQ(csv->columns()[1].arrow_type, "string");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, ReadAll(csv.get(), {.columns = {"name", "id"}}));
  EXPECT_THAT(batch->schema()->field_names(), ElementsAre("name", "id"));
}

TEST_F(TableSourceTest, NamesUnknownColumns) {
  WriteTables();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open("ids.parquet"));
  EXPECT_THAT(source->Scan({.columns = {"label"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unknown column 'label' (expected one of: id, x)")));
  EXPECT_THAT(source->Scan({.columns = {"id", "id"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("listed twice")));
  WriteParquet(PathOf("one.parquet"), *MakeBatch({{"id", arrow::int64(), "[1]"}}));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto one, Open("one.parquet"));
  EXPECT_THAT(one->Scan({.columns = {"label"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unknown column 'label' (expected id)")));
}

TEST_F(TableSourceTest, DetectsDamagedFiles) {
  WriteTables();
  for (const char* name : {"ids.parquet", "ids.arrow"}) {
    Truncate(PathOf(name));
    EXPECT_THAT(Open(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name))) << name;
  }
  Put(PathOf("bad.csv"), "id,name\n1,a\n2\n");
  EXPECT_THAT(Open("bad.csv"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bad.csv")));
}

TEST_F(TableSourceTest, NoticesThatAFileChanges) {
  WriteTables();
  for (const char* name : {"ids.parquet", "ids.arrow", "ids.csv"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open(name));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto scan, source->Scan({.batch_rows = 10}));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto first, scan->Next());
    EXPECT_EQ(first->num_rows(), 10);
    std::filesystem::resize_file(PathOf(name), 100);
    EXPECT_THAT(ReadAll(source.get(), {}),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("changed")))
        << name;
  }
}

TEST_F(TableSourceTest, KeepsReadingAReplacedFile) {
  WriteParquet(PathOf("ids.parquet"), *MakeIds(0, 100));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto source, Open("ids.parquet"));
  WriteParquet(PathOf("new"), *MakeIds(5, 10));
  std::filesystem::rename(PathOf("new"), PathOf("ids.parquet"));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, ReadAll(source.get(), {}));
  EXPECT_EQ(Int64s(*batch, "id"), Count(0, 100));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto replaced, Open("ids.parquet"));
  EXPECT_NE(source->Identity(), replaced->Identity());
}

}  // namespace
}  // namespace braid
