#include "server/jobs/dataset_batches.h"

#include <algorithm>
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

using Rows = std::vector<int64_t>;

class DatasetBatchesTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 100)); }

  DatasetBatches::Options MakeOptions() const {
    return {.data = {.path = "ids.parquet",
                     .inputs = {{"x", {"x"}}},
                     .targets = {{"target", {"id"}}},
                     .path_field = "spec.train.data.path",
                     .columns_field = "spec.train.data"},
            .batch_size = 30,
            .seed = 5};
  }

  DatasetBatches Make(DatasetBatches::Options options) const {
    return DatasetBatches(std::move(options), {{dir_.path()}, dir_.path()}, cache_.get());
  }

  // Targets of `count` batches, fewer at the end.
  std::vector<Rows> Read(DatasetBatches source, int64_t first, int64_t count) {
    std::vector<Rows> batches;
    EXPECT_THAT(source.Rows(&context_, &identity_), IsOk());
    const auto stream = source.Open(first).value();
    while (static_cast<int64_t>(batches.size()) < count) {
      const auto batch = stream->Next().value();
      if (!batch.has_value()) {
        break;
      }
      batches.push_back(ValuesOf<int64_t>(batch->targets.at(0)));
      EXPECT_EQ(batch->rows, static_cast<int64_t>(batches.back().size()));
      EXPECT_EQ(batch->inputs.at(0).name, "x");
      EXPECT_EQ(batch->targets.at(0).name, "target");
      EXPECT_GE(batch->waited, absl::ZeroDuration());
      for (size_t i = 0; i < batches.back().size(); ++i) {
        EXPECT_EQ(ValuesOf<float>(batch->inputs.at(0)).at(2 * i),
                  static_cast<float>(batches.back()[i]));
      }
    }
    return batches;
  }

  static Rows Join(const std::vector<Rows>& batches) {
    Rows all;
    for (const Rows& batch : batches) {
      all.insert(all.end(), batch.begin(), batch.end());
    }
    return all;
  }

  static Rows Sorted(Rows rows) {
    std::sort(rows.begin(), rows.end());
    return rows;
  }

  FakeContext context_;
  std::string identity_;
  const TempDir dir_;
  const std::unique_ptr<RowCache> cache_ = RowCache::Open(dir_.path() / "cache", 1'000'000).value();
};

TEST_F(DatasetBatchesTest, TrainsOnAllRowsInANewOrderPerEpoch) {
  EXPECT_EQ(Make(MakeOptions()).Rows(&context_, &identity_).value(), 100);
  const auto batches = Read(Make(MakeOptions()), 0, 8);
  const Rows first = Join({batches.begin(), batches.begin() + 4});
  const Rows second = Join({batches.begin() + 4, batches.end()});
  EXPECT_EQ(Sorted(first), Count(0, 100));
  EXPECT_EQ(Sorted(second), Count(0, 100));
  EXPECT_NE(first, second);
}

TEST_F(DatasetBatchesTest, ContinuesAtAnyBatch) {
  const auto batches = Read(Make(MakeOptions()), 0, 8);
  EXPECT_EQ(Read(Make(MakeOptions()), 5, 3),
            (std::vector<Rows>(batches.begin() + 5, batches.end())));
}

TEST_F(DatasetBatchesTest, KeepsTheOrderWithoutShuffling) {
  DatasetBatches::Options options = MakeOptions();
  options.shuffle = false;
  options.drop_last = true;
  const auto batches = Read(Make(options), 0, 4);
  EXPECT_EQ(Join({batches.begin(), batches.begin() + 3}), Count(0, 90));
  EXPECT_EQ(batches[3], Count(0, 30));
}

TEST_F(DatasetBatchesTest, SplitsTrainingAndValidationRows) {
  DatasetBatches::Options training = MakeOptions();
  training.validation_split = 0.25;
  DatasetBatches::Options validation = training;
  validation.evaluation = true;
  EXPECT_EQ(Make(training).Rows(&context_, &identity_).value(), 75);
  EXPECT_EQ(Make(validation).Rows(&context_, &identity_).value(), 25);
  Rows all = Join(Read(Make(training), 0, 3));
  const Rows evaluated = Join(Read(Make(validation), 0, 100));
  EXPECT_EQ(evaluated, Sorted(evaluated));
  all.insert(all.end(), evaluated.begin(), evaluated.end());
  EXPECT_EQ(Sorted(all), Count(0, 100));
}

TEST_F(DatasetBatchesTest, EvaluatesEachRowOnce) {
  DatasetBatches::Options options = MakeOptions();
  options.evaluation = true;
  options.drop_last = true;  // concerns training only
  EXPECT_EQ(Join(Read(Make(options), 0, 100)), Count(0, 100));
}

TEST_F(DatasetBatchesTest, DrawsByWeightsAmongTrainingRows) {
  WriteParquet(dir_.path() / "weights.parquet",
               *MakeBatch({{"id", arrow::int64(), "[0, 1, 2, 3]"},
                           {"x", arrow::float32(), "[0, 1, 2, 3]"},
                           {"w", arrow::int32(), "[0, 1, 0, 1]"},
                           {"bad", arrow::float32(), "[1, 1, 1, -1]"}}));
  DatasetBatches::Options options = MakeOptions();
  options.data.path = "weights.parquet";
  options.data.inputs = {{"x", {"x"}}};
  options.weight_column = "w";
  options.batch_size = 4;
  const auto draw = [this](DatasetBatches source) {
    Rows rows;
    EXPECT_THAT(source.Rows(&context_, &identity_), IsOk());
    const auto stream = source.Open(0).value();
    for (int i = 0; i < 50; ++i) {
      const Rows batch = ValuesOf<int64_t>(stream->Next().value()->targets.at(0));
      rows.insert(rows.end(), batch.begin(), batch.end());
    }
    rows = Sorted(rows);
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return rows;
  };
  EXPECT_THAT(draw(Make(options)), ElementsAre(1, 3));
  options.validation_split = 0.25;
  const Rows left = draw(Make(options));
  DatasetBatches::Options validation = options;
  validation.evaluation = true;
  const Rows out = Join(Read(Make(validation), 0, 1));
  for (const int64_t row : left) {
    EXPECT_TRUE((row == 1 || row == 3) && row != out.at(0)) << row;
  }
  options.weight_column = "bad";
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              RefusesField("spec.train.weight_column", HasSubstr("row 3")));
  options.weight_column = "none";
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              RefusesField("spec.train.weight_column", HasSubstr("unknown column 'none'")));
}

TEST_F(DatasetBatchesTest, ChecksTheWeights) {
  const auto check = [](const std::string& column) {
    const std::vector<Column> columns = {{"w", "int32", RowType{DataType::kInt32, {}}},
                                         {"image", "list", RowType{DataType::kFp32, {8}}},
                                         {"name", "string", std::nullopt}};
    return DatasetBatches::CheckWeights(columns, column);
  };
  const std::string field = "spec.train.weight_column";
  EXPECT_THAT(check("w"), IsOk());
  EXPECT_THAT(check("image"),
              RefusesField(field, HasSubstr("column 'image' has rows of FP32 [8] (expected num")));
  EXPECT_THAT(check("name"), RefusesField(field, HasSubstr("'name' has type string")));
  EXPECT_THAT(check("v"), RefusesField(field, HasSubstr("unknown column 'v'")));
}

TEST_F(DatasetBatchesTest, NamesTheField) {
  DatasetBatches::Options options = MakeOptions();
  options.data.targets = {{"a", {"id"}}, {"b", {"label"}}};
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              RefusesField("spec.train.data.targets[1]", HasSubstr("unknown column 'label'")));
  options.data.columns_field = "";
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              RefusesField("spec.train.data.path", HasSubstr("unknown column 'label'")));
  options = MakeOptions();
  options.data.path = "none.parquet";
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("spec.train.data.path: ")));
  options = MakeOptions();
  options.validation_split = 0.001;
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              RefusesField("spec.train.validation_split", HasSubstr("leaves no rows for valid")));
}

TEST_F(DatasetBatchesTest, NamesTheRowThatCannotBeUsed) {
  WriteParquet(dir_.path() / "nulls.parquet", *MakeBatch({{"x", arrow::float32(), "[1, null]"},
                                                          {"id", arrow::int64(), "[0, 1]"}}));
  DatasetBatches::Options options = MakeOptions();
  options.data.path = "nulls.parquet";
  EXPECT_THAT(Make(options).Rows(&context_, &identity_),
              RefusesField("spec.train.data.path", HasSubstr("column 'x', row 1: null")));
}

TEST_F(DatasetBatchesTest, NoticesThatAPackedTableChanges) {
  DatasetBatches source = Make(MakeOptions());
  ASSERT_THAT(source.Rows(&context_, &identity_), IsOk());
  EXPECT_THAT(source.CheckUnchanged(), IsOk());
  WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 99));
  EXPECT_THAT(source.CheckUnchanged(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("'ids.parquet' has changed since the job started")));
}

TEST_F(DatasetBatchesTest, NoticesThatTheDataIsAnother) {
  ASSERT_THAT(Make(MakeOptions()).Rows(&context_, &identity_), IsOk());
  ASSERT_THAT(Make(MakeOptions()).Rows(&context_, &identity_), IsOk());
  WriteParquet(dir_.path() / "ids.parquet", *MakeIds(0, 99));
  EXPECT_THAT(Make(MakeOptions()).Rows(&context_, &identity_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "spec.train.data.path: 'ids.parquet' has changed since the job started "
                       "(expected the same file)"));
}

TEST_F(DatasetBatchesTest, LogsThatItPacksATable) {
  ASSERT_THAT(Make(MakeOptions()).Rows(&context_, &identity_), IsOk());
  EXPECT_THAT(context_.log, ElementsAre("packing the table: 0 of 100 rows"));
  EXPECT_GT(context_.activities, 0);
  // The rows are packed.
  ASSERT_THAT(Make(MakeOptions()).Rows(&context_, &identity_), IsOk());
  EXPECT_EQ(context_.log.size(), 1);
}

TEST_F(DatasetBatchesTest, DoesNotLogThatItPacksAFolderOfImages) {
  dir_.Write("images/cat/1.jpg", "1");
  DatasetBatches::Options options = MakeOptions();
  options.data.path = "images";
  options.data.inputs = {{"x", {"label"}}};
  options.data.targets = {{"target", {"label"}}};
  ASSERT_THAT(Make(options).Rows(&context_, &identity_), IsOk());
  EXPECT_THAT(context_.log, ::testing::IsEmpty());
}

TEST_F(DatasetBatchesTest, StopsToPackATable) {
  WriteIpc(dir_.path() / "parts.arrow", {MakeIds(0, 10), MakeIds(10, 20), MakeIds(20, 30)});
  DatasetBatches::Options options = MakeOptions();
  options.data.path = "parts.arrow";
  options.weight_column = "id";
  // Every question is answered in turn: three batches and the end of two scans.
  for (int stop_at = 0; stop_at < 8; ++stop_at) {
    const auto cache = RowCache::Open(dir_.path() / "new", 1'000'000).value();
    int asked = 0;
    context_.decide_stop = [&](const JobProgress&) {
      return asked++ == stop_at ? JobStop::kDrain : JobStop::kNone;
    };
    DatasetBatches batches(options, {{dir_.path()}, dir_.path()}, cache.get());
    EXPECT_THAT(batches.Rows(&context_, &identity_),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped while")))
        << stop_at;
    std::filesystem::remove_all(dir_.path() / "new");
  }
}

}  // namespace
}  // namespace braid
