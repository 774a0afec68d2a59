#include "server/data/output/data_writer.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/array_source.h"
#include "server/data/preview.h"
#include "server/data/table_source.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataWriterTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const { return dir_.path() / name; }

  absl::StatusOr<std::unique_ptr<DataWriter>> Open(const std::string& name,
                                                   const arrow::RecordBatch& like,
                                                   bool overwrite = false,
                                                   const std::string& signature = "job") const {
    return DataWriter::Open({PathOf(name), signature, overwrite}, like.schema());
  }

  // Writes rows [0, 25) in three parts, with an interruption after each and in the middle of the
  // next.
  void WriteInterrupted(const std::string& name, const std::vector<int>& columns) const {
    const int64_t ends[] = {10, 20, 25};
    for (const int64_t end : ends) {
      const auto batch = MakeIds(0, 25)->SelectColumns(columns).ValueOrDie();
      BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open(name, *batch));
      const int64_t begin = writer->rows();
      EXPECT_EQ(begin, (end - 1) / 10 * 10);
      ASSERT_THAT(writer->Write(batch->Slice(begin, 4)), IsOk());
      ASSERT_THAT(writer->Write(batch->Slice(begin + 4, end - begin - 4)), IsOk());
      ASSERT_THAT(writer->FinishPart(), IsOk());
      EXPECT_EQ(writer->rows(), end);
      if (end == 25) {
        ASSERT_THAT(writer->Finish(), IsOk());
      } else {
        ASSERT_THAT(writer->Write(batch->Slice(end, 3)), IsOk());
      }
    }
    ASSERT_THAT(DataWriter::RemovePartial(PathOf(name), "job"), IsOk());
    EXPECT_THAT(Names(dir_.path()), ElementsAre(name));
  }

  std::shared_ptr<arrow::RecordBatch> ReadTable(const std::string& name) const {
    const auto source = OpenTableSource(DataFile::Open(PathOf(name)).value()).value();
    return ReadAll(source.get(), {}).value();
  }

  const TempDir dir_;
};

TEST_F(DataWriterTest, WritesParquetAcrossInterruptions) {
  WriteInterrupted("out.parquet", {0, 1});
  const auto batch = ReadTable("out.parquet");
  EXPECT_TRUE(batch->Equals(*MakeIds(0, 25))) << batch->ToString();
  // Positions of later parts are right, too.
  const auto source = OpenTableSource(DataFile::Open(PathOf("out.parquet")).value()).value();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tail, ReadAll(source.get(), {.first_row = 22}));
  EXPECT_THAT(Int64s(*tail, "id"), ElementsAre(22, 23, 24));
}

TEST_F(DataWriterTest, WritesJsonLinesAcrossInterruptions) {
  WriteInterrupted("out.jsonl", {0, 1});
  std::string expected;
  for (int i = 0; i < 25; ++i) {
    absl::StrAppend(&expected, R"({"id":)", i, R"(,"x":[)", i, ",", i, ".5]}\n");
  }
  EXPECT_EQ(Contents(PathOf("out.jsonl")), expected);
}

TEST_F(DataWriterTest, WritesNpyAcrossInterruptions) {
  WriteInterrupted("out.npy", {0});
  const auto source =
      OpenArraySource({DataFile::Open(PathOf("out.npy")).value()}, dir_.path()).value();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, ReadAll(source.get(), {}));
  EXPECT_EQ(Int64s(*batch, "out"), Count(0, 25));
}

TEST_F(DataWriterTest, WritesOneNpyFilePerColumn) {
  const auto batch = MakeIds(0, 5);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open("out/", *batch));
  ASSERT_THAT(writer->Write(batch), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  const auto source = OpenArraySource({DataFile::Open(PathOf("out/id.npy")).value(),
                                       DataFile::Open(PathOf("out/x.npy")).value()},
                                      dir_.path())
                          .value();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto read, ReadAll(source.get(), {}));
  EXPECT_TRUE(read->column(1)->Equals(batch->column(1)));
  EXPECT_THAT(Open("one.npy", *batch),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has one column, not 2")));
}

TEST_F(DataWriterTest, WritesNoRows) {
  for (const char* name : {"out.parquet", "out.jsonl", "out/"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open(name, *MakeIds(0, 1)));
    ASSERT_THAT(writer->Finish(), IsOk());
  }
  const auto source = OpenTableSource(DataFile::Open(PathOf("out.parquet")).value()).value();
  EXPECT_EQ(source->Rows().value(), 0);
  EXPECT_EQ(source->columns().size(), 2u);
  EXPECT_EQ(Contents(PathOf("out.jsonl")), "");
}

TEST_F(DataWriterTest, FormatsJsonValues) {
  const auto batch = MakeBatch({{"a\"b", arrow::utf8(), R"(["x\ny", null])"},
                                {"f", arrow::float64(), "[0.1, NaN]"},
                                {"b", arrow::boolean(), "[true, false]"},
                                {"d", arrow::date32(), "[0, 1]"}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open("out.jsonl", *batch));
  ASSERT_THAT(writer->Write(batch), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  EXPECT_EQ(Contents(PathOf("out.jsonl")), R"({"a\"b":"x\ny","f":0.1,"b":true,"d":"1970-01-01"})"
                                           "\n"
                                           R"({"a\"b":null,"f":null,"b":false,"d":"1970-01-02"})"
                                           "\n");
}

TEST_F(DataWriterTest, WritesCategoriesWithDifferentDictionaries) {
  const auto type = arrow::dictionary(arrow::int32(), arrow::utf8());
  const auto batch = [&](const std::string& categories) {
    const auto array =
        arrow::DictionaryArray::FromArrays(
            type, arrow::json::ArrayFromJSONString(arrow::int32(), "[1, 0, null]").ValueOrDie(),
            arrow::json::ArrayFromJSONString(arrow::utf8(), categories).ValueOrDie())
            .ValueOrDie();
    return arrow::RecordBatch::Make(arrow::schema({arrow::field("c", type)}), 3, {array});
  };
  const auto first = batch(R"(["a", "b"])");
  for (const char* name : {"out.parquet", "out.jsonl"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open(name, *first));
    ASSERT_THAT(writer->Write(first), IsOk());
    ASSERT_THAT(writer->Write(batch(R"(["c", "d"])")), IsOk());
    ASSERT_THAT(writer->Finish(), IsOk());
  }
  EXPECT_EQ(Contents(PathOf("out.jsonl")),
            "{\"c\":\"b\"}\n{\"c\":\"a\"}\n{\"c\":null}\n"
            "{\"c\":\"d\"}\n{\"c\":\"c\"}\n{\"c\":null}\n");
  const auto source = OpenTableSource(DataFile::Open(PathOf("out.parquet")).value()).value();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, PreviewRows(source.get(), {}, 10, 1000));
  EXPECT_THAT(rows, ElementsAre(R"({"c":"b"})", R"({"c":"a"})", R"({"c":null})", R"({"c":"d"})",
                                R"({"c":"c"})", R"({"c":null})"));
}

TEST_F(DataWriterTest, DoesNotReplaceAnExistingOutput) {
  const auto batch = MakeIds(0, 3);
  Put(PathOf("out.jsonl"), "old");
  EXPECT_THAT(Open("out.jsonl", *batch),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("overwrite")));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open("out.jsonl", *batch, /*overwrite=*/true));
  ASSERT_THAT(writer->Write(batch), IsOk());
  EXPECT_EQ(Contents(PathOf("out.jsonl")), "old");
  ASSERT_THAT(writer->Finish(), IsOk());
  EXPECT_THAT(Contents(PathOf("out.jsonl")), HasSubstr(R"("id":2)"));
}

TEST_F(DataWriterTest, DoesNotContinueTheOutputOfAnotherJob) {
  const auto batch = MakeIds(0, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(auto writer, Open("out.jsonl", *batch));
  ASSERT_THAT(writer->Write(batch), IsOk());
  ASSERT_THAT(writer->FinishPart(), IsOk());
  EXPECT_THAT(Open("out.jsonl", *batch, false, "other"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("another job")));
  EXPECT_THAT(Open("out.jsonl", *batch, true, "other"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("being written")));
  writer = nullptr;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto other, Open("out.jsonl", *batch, true, "other"));
  EXPECT_EQ(other->rows(), 0);
}

TEST_F(DataWriterTest, RemovesOnlyItsOwnParts) {
  const auto batch = MakeIds(0, 3);
  ASSERT_THAT(Open("out.jsonl", *batch), IsOk());
  ASSERT_THAT(DataWriter::RemovePartial(PathOf("out.jsonl"), "other"), IsOk());
  EXPECT_TRUE(std::filesystem::exists(PathOf("out.jsonl.partial")));
  ASSERT_THAT(DataWriter::RemovePartial(PathOf("out.jsonl"), "job"), IsOk());
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.jsonl.partial")));
  EXPECT_THAT(DataWriter::RemovePartial(PathOf("out.jsonl"), "job"), IsOk());
}

TEST_F(DataWriterTest, ContinuesWithoutTheSchema) {
  const auto batch = MakeIds(0, 3);
  const DataWriter::Options options{PathOf("out/"), "job"};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto none, DataWriter::Continue(options));
  EXPECT_EQ(none, nullptr);
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open("out/", *batch));
    ASSERT_THAT(writer->Write(batch), IsOk());
    ASSERT_THAT(writer->FinishPart(), IsOk());
  }
  const auto other = MakeBatch({{"id", arrow::int32(), "[1]"}});
  EXPECT_THAT(Open("out/", *other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'id' has type int32 (expected int64, as in")));
  // The last part was written, but not the header.
  BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, DataWriter::Continue(options));
  EXPECT_EQ(writer->rows(), 3);
  EXPECT_TRUE(writer->schema()->Equals(*batch->schema()));
  ASSERT_THAT(writer->Finish(), IsOk());
  const auto source =
      OpenArraySource({DataFile::Open(PathOf("out/id.npy")).value()}, dir_.path()).value();
  EXPECT_EQ(source->Rows().value(), 3);
}

TEST_F(DataWriterTest, TakesAFormatInsteadOfTheSuffix) {
  const auto batch = MakeIds(0, 1);
  const auto open = [&](const std::string& name, DataFormat format) {
    return DataWriter::Open({PathOf(name), "job", false, format}, batch->schema());
  };
  BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, open("out.log", DataFormat::kJsonLines));
  ASSERT_THAT(writer->Write(batch), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  EXPECT_THAT(Contents(PathOf("out.log")), HasSubstr(R"({"id":0)"));
  EXPECT_THAT(open("folder/", DataFormat::kParquet),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'folder/' is a directory")));
}

TEST_F(DataWriterTest, KnowsThatTheOutputIsComplete) {
  const auto batch = MakeIds(0, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(auto writer, Open("out.parquet", *batch));
  ASSERT_THAT(writer->Write(batch), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  writer = nullptr;
  // A crash before the end of the job was recorded.
  BRAID_ASSERT_OK_AND_ASSIGN(const auto again, Open("out.parquet", *batch));
  EXPECT_EQ(again->rows(), 3);
  EXPECT_THAT(again->Finish(), IsOk());
  EXPECT_EQ(ReadTable("out.parquet")->num_rows(), 3);
}

TEST_F(DataWriterTest, DetectsADamagedPart) {
  const auto batch = MakeIds(0, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(auto writer, Open("out.jsonl", *batch));
  ASSERT_THAT(writer->Write(batch), IsOk());
  ASSERT_THAT(writer->FinishPart(), IsOk());
  writer = nullptr;
  FlipByte(PathOf("out.jsonl.partial/data"), 3);
  EXPECT_THAT(Open("out.jsonl", *batch),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("changed after")));
}

TEST_F(DataWriterTest, ReportsAFullDisk) {
  const auto batch = MakeIds(0, 1000);
  for (const char* name : {"out.parquet", "out.jsonl", "out/"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto writer, Open(name, *batch));
    const FileSizeLimit limit(4096);
    absl::Status status = writer->Write(batch);
    status.Update(writer->FinishPart());
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("data"))) << name;
  }
}

TEST_F(DataWriterTest, RejectsPathsAndColumnsThatTheFormatsLack) {
  EXPECT_THAT(Open("out.txt", *MakeIds(0, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'out.txt' has no known suffix (expected .parquet")));
  EXPECT_THAT(Open("out.npy", *MakeBatch({{"s", arrow::utf8(), R"(["a"])"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("type string")));
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.npy.partial")));
}

TEST_F(DataWriterTest, ChecksThePlace) {
  const auto check = [&](const std::string& name) {
    return DataWriter::Check({PathOf(name), "job"});
  };
  // Another 8 bytes are for ".partial".
  EXPECT_THAT(check(std::string(239, 'a') + ".parquet"), IsOk());
  EXPECT_THAT(check(std::string(240, 'a') + ".parquet"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is too long (expected a name of at most 247 bytes)")));
  Put(PathOf("file"), "");
  EXPECT_THAT(check("file/a/out.parquet"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("/file' is a file (expected a directory)")));
  EXPECT_THAT(check("new/a/out.parquet"), IsOk());
}

TEST_F(DataWriterTest, ChecksColumns) {
  const auto check = [&](const std::string& name, const std::shared_ptr<arrow::Field>& field) {
    return DataWriter::CheckColumn({PathOf(name), "job"}, *field);
  };
  const auto text = arrow::field("s", arrow::utf8());
  const auto interval = arrow::field("i", arrow::month_day_nano_interval());
  const auto odd = arrow::field("a/b", arrow::int64());
  EXPECT_THAT(check("out.parquet", text), IsOk());
  EXPECT_THAT(check("out.jsonl", interval), IsOk());
  EXPECT_THAT(check("out.npy", odd), IsOk());
  EXPECT_THAT(check("out.parquet", interval),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("column 'i' has type month_day_nano_interval (expected a type")));
  EXPECT_THAT(check("out/", text),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("type string")));
  EXPECT_THAT(check("out/", odd),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("valid for a file")));
}

}  // namespace
}  // namespace braid
