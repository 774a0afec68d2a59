#include "server/data/preview.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/table_source.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PreviewTest : public ::testing::Test {
 protected:
  std::unique_ptr<DataSource> Csv(const std::string& text) const {
    Put(dir_.path() / "t.csv", text);
    return OpenTableSource(DataFile::Open(dir_.path() / "t.csv").value()).value();
  }

  const TempDir dir_;
};

TEST_F(PreviewTest, FormatsTheFirstRows) {
  const auto source = Csv("id,name\n1,a\n2,b\n3,c\n");
  EXPECT_EQ(source->KnownRows(), std::nullopt);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, PreviewRows(source.get(), {}, 2, 1000));
  EXPECT_THAT(rows, ElementsAre(R"({"id":1,"name":"a"})", R"({"id":2,"name":"b"})"));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto all, PreviewRows(source.get(), {"name"}, 10, 1000));
  EXPECT_THAT(all, ElementsAre(R"({"name":"a"})", R"({"name":"b"})", R"({"name":"c"})"));
}

TEST_F(PreviewTest, LimitsTheBytes) {
  const auto source = Csv("name\nab\ncd\nef\n");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, PreviewRows(source.get(), {}, 10, 30));
  EXPECT_THAT(rows, ElementsAre(R"({"name":"ab"})", R"({"name":"cd"})"));
  EXPECT_THAT(
      PreviewRows(source.get(), {}, 10, 12),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("first row takes 13 bytes")));
}

TEST_F(PreviewTest, TakesTablesWithoutRows) {
  WriteParquet(dir_.path() / "empty.parquet", *MakeIds(0, 1)->Slice(0, 0));
  const auto source =
      OpenTableSource(DataFile::Open(dir_.path() / "empty.parquet").value()).value();
  EXPECT_EQ(source->KnownRows(), 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, PreviewRows(source.get(), {}, 2, 1000));
  EXPECT_THAT(rows, IsEmpty());
}

}  // namespace
}  // namespace braid
