#include "server/jobs/file_output.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/array_source.h"
#include "server/data/table_source.h"
#include "server/data/tensor_conversion.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/remote/local_store.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileOutputTest : public ::testing::Test {
 protected:
  FileOutput::Options MakeOptions(const std::string& name) const {
    return {.file = {.path = PathOf(name), .signature = "job"}};
  }
  std::unique_ptr<FileOutput> Make(FileOutput::Options options) const {
    return std::make_unique<FileOutput>(std::move(options), &clock_);
  }
  std::string PathOf(const std::string& name) const { return dir_.path() / name; }

  static InputRows MakeRows(int64_t first, int64_t count) {
    InputRows rows;
    rows.first = first;
    rows.count = count;
    rows.kept = MakeIds(first, first + count)->SelectColumns({0}).ValueOrDie();
    return rows;
  }

  // Outputs "y" with rows [i, -i], in two pieces, and "z" in one.
  static InferenceResult MakeResult(int64_t first, int64_t count) {
    InferenceResult result;
    const int64_t cut = count / 2;
    GatheredTensor y{"y", DataType::kFp32, {count, 2}, static_cast<size_t>(8 * count), {}};
    for (const auto& [begin, end] : {std::pair(int64_t{0}, cut), std::pair(cut, count)}) {
      std::vector<float> values;
      for (int64_t i = first + begin; i < first + end; ++i) {
        values.push_back(static_cast<float>(i));
        values.push_back(static_cast<float>(-i));
      }
      y.pieces.push_back(MakeHost<float>("y", {end - begin, 2}, values));
    }
    const HostTensor z = MakeHost<int64_t>("z", {count}, Count(first, first + count));
    result.outputs = {std::move(y), {"z", z.type, z.shape, z.bytes, {z}}};
    return result;
  }

  static absl::StatusOr<int64_t> Write(FileOutput* output, int64_t first, int64_t count) {
    return output->Write(MakeRows(first, count), MakeResult(first, count));
  }

  std::shared_ptr<arrow::RecordBatch> ReadTable(const std::string& name) const {
    const auto source = OpenTableSource(DataFile::Open(PathOf(name)).value()).value();
    return ReadAll(source.get(), {}).value();
  }

  const TempDir dir_;
  ManualClock clock_;
};

TEST_F(FileOutputTest, WritesKeptColumnsAndOutputs) {
  const auto output = Make(MakeOptions("out.parquet"));
  EXPECT_EQ(output->Open().value(), 0);
  EXPECT_EQ(Write(output.get(), 0, 5).value(), 0);
  EXPECT_EQ(Write(output.get(), 5, 1).value(), 0);
  EXPECT_EQ(output->FinishPart().value(), 6);
  EXPECT_EQ(output->Close().value(), PathOf("out.parquet"));
  const auto table = ReadTable("out.parquet");
  EXPECT_THAT(table->schema()->field_names(), ElementsAre("id", "y", "z"));
  EXPECT_EQ(Int64s(*table, "id"), Count(0, 6));
  EXPECT_EQ(Int64s(*table, "z"), Count(0, 6));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto y,
                             ToTensor(*table->schema()->field(1), table->column(1), 0));
  EXPECT_THAT(y.shape, ElementsAre(6, 2));
  EXPECT_THAT(ValuesOf<float>(y), ElementsAre(0, -0.F, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5));
}

TEST_F(FileOutputTest, WritesChosenOutputsUnderOtherNames) {
  FileOutput::Options options = MakeOptions("out.jsonl");
  options.outputs = {{"z", "class"}};
  const auto output = Make(std::move(options));
  ASSERT_THAT(output->Open(), IsOk());
  ASSERT_THAT(Write(output.get(), 0, 2), IsOk());
  ASSERT_THAT(output->FinishPart(), IsOk());
  ASSERT_THAT(output->Close(), IsOk());
  EXPECT_EQ(Contents(PathOf("out.jsonl")), "{\"id\":0,\"class\":0}\n{\"id\":1,\"class\":1}\n");
}

TEST_F(FileOutputTest, ConvertsBf16ToFp32) {
  const auto bits = std::make_shared<std::vector<uint16_t>>(std::vector<uint16_t>{0x3F80, 0xC000});
  const HostTensor y{"y", DataType::kBf16, {2}, bits->data(), 4, bits};
  InferenceResult result;
  result.outputs = {{"y", y.type, y.shape, y.bytes, {y}}};
  InputRows rows;
  rows.count = 2;
  const auto output = Make(MakeOptions("out.npy"));
  ASSERT_THAT(output->Open(), IsOk());
  ASSERT_THAT(output->Write(rows, result), IsOk());
  ASSERT_THAT(output->FinishPart(), IsOk());
  ASSERT_THAT(output->Close(), IsOk());
  const auto arrays = ReadArrays(DataFile::Open(PathOf("out.npy")).value(), dir_.path()).value();
  EXPECT_EQ(arrays[0].type, DataType::kFp32);
  std::shared_ptr<const MappedRange> range;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensor, MapTensor(arrays[0], &range));
  EXPECT_THAT(ValuesOf<float>(tensor), ElementsAre(1, -2));
}

TEST_F(FileOutputTest, WritesRowsWithoutElements) {
  InferenceResult result;
  result.outputs = {{"y", DataType::kFp32, {3, 0}, 0, {MakeHost<float>("y", {3, 0}, {})}}};
  InputRows rows;
  rows.count = 3;
  const auto output = Make(MakeOptions("out.jsonl"));
  ASSERT_THAT(output->Open(), IsOk());
  ASSERT_THAT(output->Write(rows, result), IsOk());
  EXPECT_EQ(output->FinishPart().value(), 3);
  ASSERT_THAT(output->Close(), IsOk());
  EXPECT_EQ(Contents(PathOf("out.jsonl")), "{\"y\":[]}\n{\"y\":[]}\n{\"y\":[]}\n");
}

TEST_F(FileOutputTest, LeavesNothingOfAnUploadedOutput) {
  dir_.Write("bucket/out/scores/other", "");  // The store makes no directories.
  const auto store = MakeLocalStore(dir_.path());
  for (const std::string name : {"scores.parquet", "scores/"}) {
    FileOutput::Options options = MakeOptions("uploads/job/" + name);
    options.file.overwrite = true;
    options.object = "bucket/out/" + std::string(absl::StripSuffix(name, "/"));
    options.store = store.get();
    const auto output = Make(options);
    ASSERT_EQ(output->Open().value(), 0);
    ASSERT_THAT(Write(output.get(), 0, 3), IsOk());
    EXPECT_EQ(output->Close().value(), options.file.path);
    EXPECT_EQ(output->Upload().value(), "s3://" + options.object);
    output->Discard();
    EXPECT_TRUE(std::filesystem::is_empty(PathOf("uploads"))) << name;
  }
}

TEST_F(FileOutputTest, CompletesPartsByBytesAndByTime) {
  FileOutput::Options options = MakeOptions("out.parquet");
  options.part_bytes = 1000;  // 24 bytes per row
  const auto output = Make(std::move(options));
  ASSERT_THAT(output->Open(), IsOk());
  EXPECT_EQ(Write(output.get(), 0, 40).value(), 0);
  EXPECT_EQ(Write(output.get(), 40, 10).value(), 50);
  EXPECT_EQ(Write(output.get(), 50, 10).value(), 50);
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(Write(output.get(), 60, 10).value(), 50);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Write(output.get(), 70, 10).value(), 80);
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(Write(output.get(), 80, 10).value(), 80);
}

TEST_F(FileOutputTest, ContinuesAfterTheLastCompletePart) {
  for (const char* name : {"out.parquet", "out/", "out.jsonl"}) {
    for (int64_t first = 0; first < 30; first += 10) {
      const auto output = Make(MakeOptions(name));
      EXPECT_EQ(output->Open().value(), first);
      ASSERT_THAT(Write(output.get(), first, 4), IsOk());
      ASSERT_THAT(Write(output.get(), first + 4, 6), IsOk());
      EXPECT_EQ(output->FinishPart().value(), first + 10);
      ASSERT_THAT(Write(output.get(), first + 10, 3), IsOk());
      // A crash: the last rows are lost.
    }
    // All rows are in complete parts, and only the end is missing.
    EXPECT_EQ(Make(MakeOptions(name))->Open().value(), 30);
    auto output = Make(MakeOptions(name));
    ASSERT_THAT(output->Open(), IsOk());
    EXPECT_EQ(output->Close().value(), PathOf(name));
    // A crash before the end was recorded.
    output = Make(MakeOptions(name));
    EXPECT_EQ(output->Open().value(), 30);
    EXPECT_EQ(output->Close().value(), PathOf(name));
    output->Discard();
    EXPECT_FALSE(std::filesystem::exists(PathOf(name) + ".partial"));
  }
  EXPECT_EQ(Int64s(*ReadTable("out.parquet"), "z"), Count(0, 30));
  const auto ids =
      OpenArraySource({DataFile::Open(PathOf("out/id.npy")).value()}, dir_.path()).value();
  EXPECT_EQ(Int64s(*ReadAll(ids.get(), {}).value(), "id"), Count(0, 30));
}

TEST_F(FileOutputTest, DoesNotReplaceTheOutputOfAnother) {
  Put(PathOf("out.parquet"), "old");
  EXPECT_THAT(Make(MakeOptions("out.parquet"))->Open(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("spec.infer.output.path: ")));
  FileOutput::Options options = MakeOptions("out.parquet");
  options.file.overwrite = true;
  const auto output = Make(options);
  EXPECT_EQ(output->Open().value(), 0);
  ASSERT_THAT(Write(output.get(), 0, 3), IsOk());
  options.file.signature = "other";
  Make(options)->Discard();  // another job's end leaves this one alone
  ASSERT_THAT(output->FinishPart(), IsOk());
  EXPECT_EQ(Contents(PathOf("out.parquet")), "old");
  ASSERT_THAT(output->Close(), IsOk());
  EXPECT_EQ(ReadTable("out.parquet")->num_rows(), 3);
}

TEST_F(FileOutputTest, RejectsOutputsThatDoNotFit) {
  FileOutput::Options options = MakeOptions("out.parquet");
  options.outputs = {{"logits", "logits"}};
  const auto output = Make(std::move(options));
  ASSERT_THAT(output->Open(), IsOk());
  EXPECT_THAT(Write(output.get(), 0, 2),
              RefusesField("spec.infer.output.outputs",
                           HasSubstr("unknown output 'logits' (expected one of: y, z)")));
  const auto all = Make(MakeOptions("out.parquet"));
  ASSERT_THAT(all->Open(), IsOk());
  EXPECT_THAT(all->Write(MakeRows(0, 3), MakeResult(0, 2)),
              RefusesField("spec.infer.output.outputs", HasSubstr("shape [2, 2] for 3 rows")));
  ASSERT_THAT(Write(all.get(), 0, 2), IsOk());
  InferenceResult wider = MakeResult(2, 1);
  wider.outputs[0] = {"y", DataType::kFp32, {1, 3}, 12, {MakeHost<float>("y", {1, 3}, {1, 2, 3})}};
  EXPECT_THAT(all->Write(MakeRows(2, 1), wider),
              RefusesField("spec.infer.output", HasSubstr("as in the rows before")));
}

TEST_F(FileOutputTest, ChecksANewJob) {
  const auto check = [&](const FileOutput::Options& options, const arrow::FieldVector& kept) {
    return FileOutput::Check(options, kept, {"y", "z"});
  };
  EXPECT_THAT(check(MakeOptions("out.parquet"), {arrow::field("id", arrow::int64())}), IsOk());
  EXPECT_THAT(check(MakeOptions("out.txt"), {}),
              RefusesField("spec.infer.output.path", HasSubstr("has no known suffix")));
  EXPECT_THAT(check(MakeOptions("out.parquet"), {arrow::field("z", arrow::int64())}),
              RefusesField("spec.infer.output.outputs", HasSubstr("two columns are named 'z'")));
  FileOutput::Options options = MakeOptions("out.parquet");
  options.outputs = {{"x", "x"}};
  EXPECT_THAT(check(options, {}),
              RefusesField("spec.infer.output.outputs", HasSubstr("unknown output 'x'")));
}

TEST_F(FileOutputTest, ChecksThatTheFormatHasTheColumns) {
  FileOutput::Options one = MakeOptions("out.npy");
  one.outputs = {{"y", "y"}};
  const auto id = arrow::field("id", arrow::int64());
  const auto name = arrow::field("name", arrow::utf8());
  const std::vector<std::string> names = {"y"};
  EXPECT_THAT(FileOutput::Check(one, {}, names), IsOk());
  EXPECT_THAT(FileOutput::Check(one, {id}, names),
              RefusesField("spec.infer.output.path", HasSubstr("has one column, not 2")));
  EXPECT_THAT(FileOutput::Check(MakeOptions("out/"), {id}, names), IsOk());
  EXPECT_THAT(FileOutput::Check(MakeOptions("out/"), {name}, names),
              RefusesField("spec.infer.output.keep", HasSubstr("'name' has type string")));
  FileOutput::Options slash = MakeOptions("out/");
  slash.outputs = {{"y", "a/b"}};
  EXPECT_THAT(FileOutput::Check(slash, {}, names),
              RefusesField("spec.infer.output.outputs", HasSubstr("valid for a file")));
  EXPECT_THAT(FileOutput::Check(MakeOptions("out.jsonl"), {id}, {}), IsOk());
}

TEST_F(FileOutputTest, NamesTheKeptColumnThatCannotBeWritten) {
  InputRows rows = MakeRows(0, 2);
  rows.kept = MakeBatch({{"id", arrow::int64(), "[1, null]"}});
  const auto output = Make(MakeOptions("out/"));
  ASSERT_THAT(output->Open(), IsOk());
  EXPECT_THAT(output->Write(rows, MakeResult(0, 2)),
              RefusesField("spec.infer.output.keep", HasSubstr("column 'id', row 1: null")));
  rows.kept = MakeBatch({{"name", arrow::utf8(), R"(["a", "b"])"}});
  const auto other = Make(MakeOptions("other/"));
  ASSERT_THAT(other->Open(), IsOk());
  EXPECT_THAT(other->Write(rows, MakeResult(0, 2)),
              RefusesField("spec.infer.output.keep", HasSubstr("'name' has type string")));
}

TEST_F(FileOutputTest, NamesThePathIfTheDiskIsFull) {
  const auto output = Make(MakeOptions("out.jsonl"));
  ASSERT_THAT(output->Open(), IsOk());
  ASSERT_THAT(Write(output.get(), 0, 2), IsOk());
  const FileSizeLimit limit(64);
  EXPECT_THAT(Write(output.get(), 2, 100), StatusIs(absl::StatusCode::kResourceExhausted,
                                                    HasSubstr("spec.infer.output.path: ")));
}

}  // namespace
}  // namespace braid
