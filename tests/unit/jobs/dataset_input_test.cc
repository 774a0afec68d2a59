#include "server/jobs/dataset_input.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/jobs/fake_context.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DatasetInputTest : public ::testing::Test {
 protected:
  DatasetInput Make(const std::string& path, std::vector<std::string> keep = {"id"}) const {
    return DatasetInput({.data = {.path = path,
                                  .inputs = {{"input", {"x"}}},
                                  .path_field = "spec.infer.data.path",
                                  .columns_field = "spec.infer.data"},
                         .keep = std::move(keep)},
                        {{dir_.path()}, dir_.path()});
  }

  static std::unique_ptr<RowStream> Open(DatasetInput* input, int64_t first_row) {
    FakeContext context;
    std::string identity;
    EXPECT_THAT(input->Rows(&context, &identity), IsOk());
    return input->Open(first_row).value();
  }
  absl::StatusOr<int64_t> RowsOf(const std::string& path,
                                 std::vector<std::string> keep = {"id"}) const {
    std::string identity;
    return Make(path, std::move(keep)).Rows(&context_, &identity);
  }

  const TempDir dir_;
  mutable FakeContext context_;
};

TEST_F(DatasetInputTest, StreamsRowsFromAnyRow) {
  WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 100), /*row_group_rows=*/40);
  DatasetInput input = Make("ids.parquet");
  std::string identity;
  EXPECT_EQ(input.Rows(&context_, &identity).value(), 100);
  for (const int64_t first : {0, 1, 40, 77, 100}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto stream, input.Open(first));
    int64_t next = first;
    while (true) {
      BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, stream->Next(16, 16));
      if (!rows.has_value()) {
        break;
      }
      EXPECT_EQ(rows->first, next);
      EXPECT_LE(rows->count, 16);
      ASSERT_EQ(rows->requests.at(0).inputs.size(), 1u);
      EXPECT_EQ(rows->requests.at(0).inputs[0].name, "input");
      EXPECT_THAT(rows->requests.at(0).inputs[0].shape, ElementsAre(rows->count, 2));
      EXPECT_EQ(ValuesOf<float>(rows->requests.at(0).inputs[0])[0], static_cast<float>(next));
      const auto& kept = *static_cast<const arrow::RecordBatch*>(rows->kept.get());
      EXPECT_EQ(Int64s(kept, "id"), Count(next, next + rows->count));
      EXPECT_EQ(kept.schema()->metadata(), nullptr);
      EXPECT_GE(rows->waited, absl::ZeroDuration());
      next += rows->count;
    }
    EXPECT_EQ(next, 100);
  }
}

TEST_F(DatasetInputTest, JoinsSmallBatches) {
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches;
  for (int64_t row = 0; row < 50; ++row) {
    batches.push_back(MakeIds(row, row + 1));
  }
  batches.push_back(MakeIds(50, 100));
  WriteIpc(dir_.path() / "ids.arrow", batches);
  DatasetInput input = Make("ids.arrow");
  const auto stream = Open(&input, 3);
  int64_t next = 3;
  for (const int64_t count : {16, 16, 16, 16, 16, 16, 1}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, stream->Next(16, 16));
    EXPECT_EQ(rows->first, next);
    EXPECT_EQ(rows->count, count);
    EXPECT_THAT(rows->requests.at(0).inputs[0].shape, ElementsAre(count, 2));
    EXPECT_EQ(ValuesOf<float>(rows->requests.at(0).inputs[0]).back(),
              static_cast<float>(next + count) - 0.5F);
    EXPECT_EQ(Int64s(*static_cast<const arrow::RecordBatch*>(rows->kept.get()), "id"),
              Count(next, next + count));
    next += count;
  }
  EXPECT_FALSE(stream->Next(16, 16).value().has_value());
}

TEST_F(DatasetInputTest, DoesNotCopyRowsOfALargeBatch) {
  WriteIpc(dir_.path() / "ids.arrow", {MakeIds(0, 100)});
  DatasetInput input = Make("ids.arrow");
  const auto stream = Open(&input, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto first, stream->Next(16, 16));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto second, stream->Next(16, 16));
  EXPECT_EQ(static_cast<const char*>(first->requests.at(0).inputs[0].data) + 16 * sizeof(int64_t),
            second->requests.at(0).inputs[0].data);
}

TEST_F(DatasetInputTest, DoesNotJoinListsOfDifferentLengths) {
  const auto lists = [](const std::string& values) {
    return MakeBatch({{"x", arrow::list(arrow::float32()), values}});
  };
  WriteIpc(dir_.path() / "lists.arrow",
           {lists("[[1, 2]]"), lists("[[3, 4]]"), lists("[[5], [6]]"), lists("[null]")});
  DatasetInput input = Make("lists.arrow", {});
  const auto stream = Open(&input, 0);
  EXPECT_THAT(stream->Next(16, 16).value()->requests.at(0).inputs[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(stream->Next(16, 16).value()->requests.at(0).inputs[0].shape, ElementsAre(2, 1));
  EXPECT_THAT(stream->Next(16, 16), RefusesField("spec.infer.data.path", HasSubstr("row 4: null")));
}

TEST_F(DatasetInputTest, JoinsCategoriesWithDifferentDictionaries) {
  const auto type = arrow::dictionary(arrow::int32(), arrow::utf8());
  for (const std::string name : {"a", "b"}) {
    const auto categories = arrow::DictionaryArray::FromArrays(
        type, arrow::json::ArrayFromJSONString(arrow::int32(), "[0, null]").ValueOrDie(),
        arrow::json::ArrayFromJSONString(arrow::utf8(), "[\"" + name + "\"]").ValueOrDie());
    const auto x = arrow::json::ArrayFromJSONString(arrow::float32(), "[1, 2]").ValueOrDie();
    std::filesystem::create_directory(dir_.path() / "parts");
    WriteParquet(dir_.path() / "parts" / (name + ".parquet"),
                 *arrow::RecordBatch::Make(arrow::schema({arrow::field("x", arrow::float32()),
                                                          arrow::field("category", type)}),
                                           2, {x, categories.ValueOrDie()}));
  }
  DatasetInput input = Make("parts", {"category"});
  const auto stream = Open(&input, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, stream->Next(16, 16));
  EXPECT_EQ(rows->count, 4);
  const auto& kept = *static_cast<const arrow::RecordBatch*>(rows->kept.get());
  const auto& categories = static_cast<const arrow::DictionaryArray&>(*kept.column(0));
  const auto category = [&](int64_t row) {
    return categories.dictionary()->GetScalar(categories.GetValueIndex(row)).ValueOrDie();
  };
  EXPECT_EQ(category(0)->ToString(), "a");
  EXPECT_TRUE(categories.IsNull(1));
  EXPECT_EQ(category(2)->ToString(), "b");
}

TEST_F(DatasetInputTest, KeepsColumnsThatAreNoTensors) {
  WriteParquet(dir_.path() / "names.parquet", *MakeBatch({{"x", arrow::float32(), "[1, 2]"},
                                                          {"name", arrow::utf8(), R"(["a", null])"},
                                                          {"day", arrow::date32(), "[0, 1]"}}));
  DatasetInput input = Make("names.parquet", {"day", "x", "name"});
  const auto stream = Open(&input, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, stream->Next(16, 16));
  const auto& kept = *static_cast<const arrow::RecordBatch*>(rows->kept.get());
  EXPECT_THAT(kept.schema()->field_names(), ElementsAre("day", "x", "name"));
  EXPECT_EQ(kept.column(2)->ToString(), "[\n  \"a\",\n  null\n]");
  DatasetInput without = Make("names.parquet", {});
  const auto inputs = Open(&without, 0);
  EXPECT_EQ(inputs->Next(16, 16).value()->kept, nullptr);
}

TEST_F(DatasetInputTest, NamesTheField) {
  WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 3));
  EXPECT_THAT(RowsOf("none.parquet"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("spec.infer.data.path: ")));
  EXPECT_THAT(RowsOf("ids.parquet", {"label"}),
              RefusesField("spec.infer.output.keep", HasSubstr("unknown column 'label'")));
  WriteParquet(dir_.path() / "text.parquet", *MakeBatch({{"x", arrow::utf8(), R"(["a"])"}}));
  EXPECT_THAT(RowsOf("text.parquet", {}),
              RefusesField("spec.infer.data.inputs[0]", HasSubstr("type string")));
  WriteParquet(dir_.path() / "empty.parquet", *MakeIds(0, 3)->Slice(0, 0));
  EXPECT_THAT(RowsOf("empty.parquet"), RefusesField("spec.infer.data.path", HasSubstr("no rows")));
}

TEST_F(DatasetInputTest, NamesTheRowThatCannotBeUsed) {
  WriteParquet(dir_.path() / "nulls.parquet",
               *MakeBatch({{"x", arrow::float32(), "[1, 2, 3, null]"}}));
  DatasetInput input = Make("nulls.parquet", {});
  const auto stream = Open(&input, 1);
  EXPECT_THAT(stream->Next(1, 1), IsOk());
  EXPECT_THAT(stream->Next(2, 2),
              RefusesField("spec.infer.data.path", HasSubstr("column 'x', row 3: null")));
}

TEST_F(DatasetInputTest, NoticesThatTheDataIsAnother) {
  WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 100));
  std::string identity;
  ASSERT_THAT(Make("ids.parquet").Rows(&context_, &identity), IsOk());
  ASSERT_THAT(Make("ids.parquet").Rows(&context_, &identity), IsOk());
  WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 99));
  EXPECT_THAT(Make("ids.parquet").Rows(&context_, &identity),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "spec.infer.data.path: 'ids.parquet' has changed since the job started "
                       "(expected the same file)"));
}

}  // namespace
}  // namespace braid
