// Datasets of jobs whose columns are decoded.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/jobs/check_columns.h"
#include "server/jobs/dataset.h"
#include "server/jobs/dataset_batches.h"
#include "server/jobs/dataset_input.h"
#include "server/models/input_decoders.h"
#include "server/storage/checksum.h"
#include "tests/fakes/byte_decoder.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/number_decoder.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/jobs/fake_context.h"
#include "tests/unit/remote/local_store.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Number of rows; those with row % 7 == 3 and the last two are unreadable.
constexpr int64_t kRows = 30;

bool IsReadable(int64_t row) { return row % 7 != 3 && row < kRows - 2; }

class DatasetDecodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string images;
    std::string ids;
    for (int64_t row = 0; row < kRows; ++row) {
      const std::string text = IsReadable(row) ? std::to_string(10 * row) : "bad";
      images += (row == 0 ? "[\"" : ",\"") + text + "\"";
      ids += (row == 0 ? "[" : ",") + std::to_string(row);
    }
    WriteParquet(dir_.path() / "rows.parquet", *MakeBatch({{"image", arrow::binary(), images + "]"},
                                                           {"id", arrow::int64(), ids + "]"}}));
    config_.name = "net";
    config_.max_batch_size = 8;
    config_.inputs = {{.name = "x", .type = DataType::kFp32, .dims = {3}}};
    config_.inputs[0].decoder = std::make_shared<const NumberDecoder>();
    config_.inputs[0].decode_json = "{}";
  }

  DatasetOptions MakeOptions() const {
    DatasetOptions options{.path = "rows.parquet",
                           .inputs = {{"x", {"image"}}},
                           .path_field = "spec.infer.data.path",
                           .columns_field = "spec.infer.data"};
    options.skip_unreadable = true;
    options.model = [this] { return config_; };
    return options;
  }

  DataDirectories Directories() const { return {{dir_.path()}, dir_.path()}; }

  // Reads all rows in requests of at most `max_rows`.
  std::vector<InputRows> Read(int64_t first_row, int64_t max_rows) {
    DatasetInput input({MakeOptions(), {"id"}}, Directories());
    std::string identity;
    EXPECT_EQ(input.Rows(&context_, &identity).value(), kRows);
    const auto stream = input.Open(first_row).value();
    std::vector<InputRows> all;
    int64_t next = first_row;
    while (auto rows = stream->Next(max_rows, max_rows).value()) {
      EXPECT_EQ(rows->first, next);
      next = rows->end();
      all.push_back(*std::move(rows));
    }
    EXPECT_EQ(next, kRows);
    return all;
  }

  const TempDir dir_;
  ModelConfig config_;
  FakeContext context_;
};

TEST_F(DatasetDecodeTest, StreamsReadableRowsInOrderFromAnyRow) {
  for (const int64_t max_rows : {1, 4, 100}) {
    for (const int64_t first : {0, 3, 5, 28}) {
      std::vector<int64_t> ids;
      size_t skipped = 0;
      for (const InputRows& rows : Read(first, max_rows)) {
        EXPECT_LE(rows.count, max_rows);
        skipped += rows.skipped.size();
        const auto* kept = static_cast<const arrow::RecordBatch*>(rows.kept.get());
        for (int64_t r = 0; r < rows.count; ++r) {
          ids.push_back(Int64s(*kept, "id")[static_cast<size_t>(r)]);
          EXPECT_EQ(ValuesOf<float>(rows.requests.at(0).inputs.at(0))[static_cast<size_t>(3 * r)],
                    static_cast<float>(10 * ids.back()));
        }
      }
      std::vector<int64_t> expected;
      for (int64_t row = first; row < kRows; ++row) {
        if (IsReadable(row)) {
          expected.push_back(row);
        }
      }
      EXPECT_EQ(ids, expected);
      EXPECT_EQ(skipped, static_cast<size_t>(kRows - first) - expected.size());
    }
  }
}

// Texts of 1 to 40 bytes; row r starts with byte r + 40. Each seventh and the last are unreadable.
class TextWindowTest : public DatasetDecodeTest {
 protected:
  static constexpr int64_t kTexts = 200;

  void SetUp() override {
    DatasetDecodeTest::SetUp();
    std::string ids;
    std::string texts;
    for (int64_t row = 0; row < kTexts; ++row) {
      absl::StrAppend(&ids, row == 0 ? "[" : ",", row);
      absl::StrAppend(&texts, row == 0 ? "[\"" : ",\"", TextOf(row), "\"");
    }
    WriteParquet(dir_.path() / "texts.parquet", *MakeBatch({{"text", arrow::utf8(), texts + "]"},
                                                            {"id", arrow::int64(), ids + "]"}}));
    config_.inputs[0] = {.name = "x", .type = DataType::kInt64, .dims = {kUnknownDim}};
    config_.inputs[0].decoder = std::make_shared<const ByteDecoder>();
    config_.inputs[0].decode_json = "{}";
  }

  static bool IsText(int64_t row) { return row % 7 != 3 && row < kTexts - 1; }
  static std::string TextOf(int64_t row) {
    return (IsText(row) ? "" : "!") + std::string(static_cast<size_t>(1 + row * 37 % 40), 'a') +
           std::to_string(row);
  }

  // Opens the texts, with their IDs as a second input and as a kept column.
  std::unique_ptr<RowStream> Open(int64_t first_row) {
    DatasetOptions options = MakeOptions();
    options.path = "texts.parquet";
    options.inputs = {{"x", {"text"}}, {"id", {"id"}}};
    input_ = std::make_unique<DatasetInput>(DatasetInput::Options{options, {"id"}}, Directories());
    std::string identity;
    EXPECT_EQ(input_->Rows(&context_, &identity).value(), kTexts);
    return input_->Open(first_row).value();
  }

  // Checks the requests, and returns the number of their elements.
  static int64_t CheckRequests(const InputRows& rows, int64_t max_rows) {
    const std::vector<int64_t> kept =
        Int64s(*static_cast<const arrow::RecordBatch*>(rows.kept.get()), "id");
    EXPECT_THAT(kept, SizeIs(rows.count));
    std::vector<bool> seen(kept.size());
    int64_t elements = 0;
    for (const InputRows::Request& request : rows.requests) {
      EXPECT_LE(request.rows(), max_rows);
      const std::vector<int64_t> texts = ValuesOf<int64_t>(request.inputs.at(0));
      const std::vector<int64_t> ids = ValuesOf<int64_t>(request.inputs.at(1));
      elements += static_cast<int64_t>(texts.size());
      const size_t width = texts.size() / ids.size();
      for (size_t r = 0; r < ids.size(); ++r) {
        const size_t position =
            request.positions.empty() ? r : static_cast<size_t>(request.positions[r]);
        EXPECT_EQ(kept[position], ids[r]);
        EXPECT_FALSE(seen[position]);
        seen[position] = true;
        const std::string text = TextOf(ids[r]);
        EXPECT_TRUE(std::equal(text.begin(), text.end(), texts.begin() + r * width));
      }
    }
    EXPECT_THAT(seen, Each(true));
    return elements;
  }

  // Reads all rows from `first_row` on, and returns the number of elements of all requests.
  int64_t ReadTexts(int64_t first_row, int64_t max_rows, int64_t window_rows) {
    const std::unique_ptr<RowStream> stream = Open(first_row);
    int64_t next = first_row;
    int64_t elements = 0;
    while (const auto rows = stream->Next(max_rows, window_rows).value()) {
      EXPECT_EQ(rows->first, next);
      EXPECT_LE(rows->count, std::max(max_rows, window_rows));
      for (const SkippedRow& skipped : rows->skipped) {
        EXPECT_FALSE(IsText(skipped.row));
        EXPECT_GE(skipped.row, next);
        EXPECT_LT(skipped.row, rows->end());
      }
      next = rows->end();
      elements += rows->count == 0 ? 0 : CheckRequests(*rows, max_rows);
    }
    EXPECT_EQ(next, kTexts);
    return elements;
  }

  std::unique_ptr<DatasetInput> input_;
};

TEST_F(TextWindowTest, RequestsOfAWindowHaveEachRowOnce) {
  for (const int64_t max_rows : {1, 4, 1000}) {
    for (const int64_t window_rows : {1, 30, 1000}) {
      for (const int64_t first_row : {0, 3, 57, 199}) {
        ReadTexts(first_row, max_rows, window_rows);
      }
    }
  }
}

TEST_F(TextWindowTest, RowsOfSimilarLengthHaveLittlePadding) {
  int64_t bytes = 0;
  for (int64_t row = 0; row < kTexts; ++row) {
    bytes += IsText(row) ? static_cast<int64_t>(TextOf(row).size()) : 0;
  }
  EXPECT_GT(ReadTexts(0, 8, 8), bytes * 15 / 10);
  EXPECT_LT(ReadTexts(0, 8, kTexts), bytes * 11 / 10);
}

TEST_F(TextWindowTest, RowsOfOneRequestKeepTheirOrder) {
  const auto rows = Open(0)->Next(50, 50).value();
  ASSERT_THAT(rows->requests, SizeIs(1));
  EXPECT_THAT(rows->requests.front().positions, IsEmpty());
}

TEST_F(DatasetDecodeTest, TrainsOnReadableRows) {
  DatasetOptions data = MakeOptions();
  data.targets = {{"target", {"id"}}};
  const auto cache = RowCache::Open(dir_.path() / "cache", 1'000'000).value();
  DatasetBatches source({.data = data, .batch_size = 10, .seed = 5}, Directories(), cache.get());
  std::string identity;
  EXPECT_EQ(source.Rows(&context_, &identity).value(), kRows);
  const auto stream = source.Open(0).value();
  for (int batch = 0; batch < 6; ++batch) {
    const TrainingBatch rows = *stream->Next().value();
    EXPECT_EQ(rows.rows + static_cast<int64_t>(rows.skipped.size()), 10);
    const std::vector<int64_t> ids = ValuesOf<int64_t>(rows.targets.at(0));
    for (size_t r = 0; r < ids.size(); ++r) {
      EXPECT_EQ(ValuesOf<float>(rows.inputs.at(0))[3 * r], static_cast<float>(10 * ids[r]));
      // Seed and epoch.
      const int epoch = batch / 3;
      EXPECT_EQ(ValuesOf<float>(rows.inputs.at(0))[3 * r + 2], static_cast<float>(5 + epoch));
    }
  }
}

TEST_F(DatasetDecodeTest, RejectsTokenizersOutsideTheDataRoots) {
  const TempDir elsewhere;
  elsewhere.Write("tokenizer.json", "{}");
  dir_.Write("own.json", "{}");
  std::filesystem::create_symlink(elsewhere.path() / "tokenizer.json", dir_.path() / "out.json");
  std::filesystem::create_symlink("own.json", dir_.path() / "in.json");
  const auto open = [&](const std::string& tokenizer, std::vector<std::string> directories) {
    DatasetOptions options = MakeOptions();
    TextSpec text;
    text.tokenizer = tokenizer;
    options.input_decode = {{.spec = text}};
    options.decode_directories = std::move(directories);
    return OpenDataset(options, Directories()).status();
  };
  const std::string field = "spec.infer.data.inputs[0].decode.tokenizer";
  EXPECT_THAT(open("out.json", {}),
              RefusesField(field, HasSubstr("'out.json' leaves the data roots (expected a path")));
  EXPECT_THAT(open("in.json", {}), RefusesField(field, HasSubstr("/in.json': ")));  // opened
  // The model's own file comes first. Links in its folder may lead anywhere.
  const TempDir model;
  std::filesystem::create_symlink(elsewhere.path() / "tokenizer.json", model.path() / "out.json");
  EXPECT_THAT(open("out.json", {model.path()}),
              RefusesField(field, HasSubstr(absl::StrCat(model.path().string(), "/out.json': "))));
}

TEST_F(DatasetDecodeTest, NamesObjectsInErrorsOfTheFilesThatADatasetInS3Names) {
  dir_.Write("bucket/set/list.csv", "image\ncat/1.jpg\n");
  const auto store = MakeLocalStore(dir_.path());
  const auto copies = ObjectCopies::Open(store.get(), dir_.path() / "copies", 1'000'000).value();
  const RemoteData remote{{"bucket"}, store.get(), copies.get()};
  const DataDirectories directories{{}, dir_.path(), &remote};
  DatasetOptions options = MakeOptions();
  options.path = "s3://bucket/set";
  options.skip_unreadable = false;
  options.input_decode = {{.paths = true}};
  BRAID_ASSERT_OK_AND_ASSIGN(const Dataset dataset, OpenDataset(options, directories));
  EXPECT_THAT(CheckFirstRow(options, dataset, absl::OkStatus),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("'cat/1.jpg' does not exist (expected a file or directory in "
                                 "s3://bucket/set)")));
  TextSpec text;
  text.tokenizer = "tokenizer.json";
  options.input_decode = {{.spec = text}};
  EXPECT_THAT(OpenDataset(options, directories),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no file 'tokenizer.json' in s3://bucket/set")));
}

TEST_F(DatasetDecodeTest, FailsAtTheFirstUnreadableRowUnlessRowsMayBeLeftOut) {
  DatasetOptions options = MakeOptions();
  options.skip_unreadable = false;
  DatasetInput input({options, {}}, Directories());
  std::string identity;
  EXPECT_THAT(input.Rows(&context_, &identity), IsOk());
  EXPECT_THAT(input.Open(0).value()->Next(100, 100),
              RefusesField("spec.infer.data.path", HasSubstr("column 'image', row 3: not a num")));
}

TEST_F(DatasetDecodeTest, SaysWhetherTheDataOrTheDecodingOfTheModelHasChanged) {
  std::string identity;
  const DatasetOptions options = MakeOptions();
  const auto check = [&] {
    return CheckSameData(options, OpenDataset(options, Directories()).value(), &identity);
  };
  const auto refuses = [](const char* text) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("spec.infer.data.path: ", text));
  };
  EXPECT_THAT(check(), IsOk());
  EXPECT_THAT(check(), IsOk());
  config_.inputs[0].decode_json = "{\"other\":1}";
  EXPECT_THAT(check(), refuses("the model's decode parameters have changed since the job started "
                               "(expected the same parameters)"));
  config_.inputs[0].decode_json = "{}";
  WriteParquet(dir_.path() / "rows.parquet", *MakeBatch({{"image", arrow::utf8(), "[\"1\"]"}}));
  EXPECT_THAT(check(), refuses("'rows.parquet' has changed since the job started (expected the "
                               "same file)"));
  config_.inputs[0].decode_json = "{\"other\":1}";
  EXPECT_THAT(check(), refuses("'rows.parquet' and the model's decode parameters have changed "
                               "since the job started (expected the same file)"));
}

TEST_F(DatasetDecodeTest, ReadsTheOneChecksumThatEarlierVersionsStored) {
  const DatasetOptions options = MakeOptions();
  const Dataset dataset = OpenDataset(options, Directories()).value();
  std::string identity = ChecksumOf(dataset.source->Identity() + dataset.decoding);
  EXPECT_THAT(CheckSameData(options, dataset, &identity), IsOk());
  config_.inputs[0].decode_json = "{\"other\":1}";
  EXPECT_THAT(CheckSameData(options, OpenDataset(options, Directories()).value(), &identity),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("'rows.parquet' or the model's decode parameters have changed")));
}

TEST_F(DatasetDecodeTest, NeedsADecoderForBytes) {
  config_.inputs[0].decoder = nullptr;
  EXPECT_THAT(OpenDataset(MakeOptions(), Directories()),
              RefusesField("spec.infer.data.inputs[0]", HasSubstr("expected numbers, or decode")));
  DatasetOptions options = MakeOptions();
  options.input_decode = {{.paths = true}};
  EXPECT_THAT(OpenDataset(options, Directories()),
              RefusesField("spec.infer.data.inputs[0].decode", HasSubstr("no image or text")));
}

TEST_F(DatasetDecodeTest, EvaluatesWithoutRandomTransforms) {
  config_.inputs[0].decoder = nullptr;
  DatasetOptions options = MakeOptions();
  const ImageSpec random{.transforms = {RandomHorizontalFlip(), Resize{{4, 4}}}};
  const ImageSpec fixed{.transforms = {Resize{{4, 4}}}};
  options.evaluation = true;
  options.input_decode = {{.spec = random}};
  EXPECT_THAT(OpenDataset(options, Directories()),
              RefusesField("spec.infer.data.inputs[0].evaluation_decode", HasSubstr("missing")));
  options.input_decode = {{.spec = random, .evaluation = fixed}};
  EXPECT_THAT(OpenDataset(options, Directories()), IsOk());
  options.input_decode = {{.spec = fixed}};
  EXPECT_THAT(OpenDataset(options, Directories()), IsOk());
}

TEST_F(DatasetDecodeTest, ReadsTheImagesOfAFolderWhenTheyAreDecoded) {
  std::filesystem::create_directories(dir_.path() / "images/cat");
  Put(dir_.path() / "images/cat/1.jpg", "11");
  Put(dir_.path() / "images/cat/2.jpg", "22");
  DatasetOptions options = MakeOptions();
  options.path = "images";
  options.targets = {{"target", {"label"}}};
  const Dataset dataset = OpenDataset(options, Directories()).value();
  EXPECT_THAT(dataset.input_columns[0].columns, ElementsAre("path"));
  EXPECT_NE(dataset.input_columns[0].files, nullptr);
  EXPECT_THAT(CheckFirstRow(options, dataset, absl::OkStatus), IsOk());
}

TEST_F(DatasetDecodeTest, EndsTheCheckOfTheFirstRowBeforeTheNextColumnIfItIsCancelled) {
  config_.inputs.push_back(config_.inputs[0]);
  config_.inputs[1].name = "y";
  DatasetOptions options = MakeOptions();
  options.inputs.push_back({"y", {"image"}});
  const Dataset dataset = OpenDataset(options, Directories()).value();
  int calls = 0;
  const auto cancel_second = [&] {
    return ++calls < 2 ? absl::OkStatus() : absl::CancelledError("the call has ended");
  };
  EXPECT_THAT(CheckFirstRow(options, dataset, cancel_second),
              StatusIs(absl::StatusCode::kCancelled, "the call has ended"));
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(CheckFirstRow(options, dataset, absl::OkStatus), IsOk());
}

TEST_F(DatasetDecodeTest, NamesTheColumnOfAFolderThatTheSpecificationNames) {
  std::filesystem::create_directories(dir_.path() / "images/cat");
  Put(dir_.path() / "images/cat/1.jpg", "bad");
  DatasetOptions options = MakeOptions();
  options.path = "images";
  options.skip_unreadable = false;
  const Dataset dataset = OpenDataset(options, Directories()).value();
  EXPECT_THAT(CheckFirstRow(options, dataset, absl::OkStatus),
              RefusesField("spec.infer.data.inputs[0]",
                           HasSubstr("column 'image', row 0: not a number (expected one) (file "
                                     "'cat/1.jpg')")));
  config_.inputs[0].dims = {4};
  EXPECT_THAT(CheckInputColumns({{"inputs", dataset.input_columns, dataset.inputs}}, config_),
              RefusesField("inputs[0].columns", HasSubstr("a row of column 'image' is FP32 [3]")));
  options.targets = {{"target", {"label"}}};
  const auto cache = RowCache::Open(dir_.path() / "cache", 1'000'000).value();
  DatasetBatches source({.data = options, .batch_size = 1}, Directories(), cache.get());
  std::string identity;
  EXPECT_THAT(source.Rows(&context_, &identity), IsOk());
  EXPECT_THAT(source.Open(0).value()->Next(),
              RefusesField("spec.infer.data.path", HasSubstr("column 'image', row 0: ")));
  config_.inputs[0].decoder = nullptr;
  EXPECT_THAT(
      OpenDataset(options, Directories()),
      RefusesField("spec.infer.data.inputs[0]", HasSubstr("column 'image' has type binary")));
}

TEST_F(DatasetDecodeTest, NoticesThatAFolderOfImagesChanges) {
  const auto folder = dir_.path() / "images";
  std::filesystem::create_directories(folder);
  Put(folder / "1.jpg", "11");
  DatasetOptions options = MakeOptions();
  options.path = "images";
  options.targets = {};
  DatasetInput input({.data = options}, Directories());
  std::string identity;
  ASSERT_THAT(input.Rows(&context_, &identity), IsOk());
  EXPECT_THAT(input.CheckUnchanged(), IsOk());
  const auto changed = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("'images' has changed since the job started"));
  Put(folder / "1.jpg", "123");
  EXPECT_THAT(input.CheckUnchanged(), changed);
  std::filesystem::remove(folder / "1.jpg");
  EXPECT_THAT(input.CheckUnchanged(), changed);
  std::filesystem::remove(folder);
  EXPECT_THAT(input.CheckUnchanged(), changed);
}

TEST_F(DatasetDecodeTest, DecodesNoMoreRowsWhenTheJobMustStop) {
  DatasetInput input({MakeOptions(), {}}, Directories());
  std::string identity;
  EXPECT_THAT(input.Rows(&context_, &identity), IsOk());
  context_.decide_stop = [](const JobProgress&) { return JobStop::kCancel; };
  EXPECT_THAT(input.Open(0).value()->Next(4, 4),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_F(DatasetDecodeTest, ChecksTheMemoryOfABatch) {
  const Dataset dataset = OpenDataset(MakeOptions(), Directories()).value();
  // A row has 12 bytes.
  EXPECT_THAT(CheckBatchMemory(dataset, 10, 240, "batch_size"), IsOk());
  EXPECT_THAT(
      CheckBatchMemory(dataset, 10, 239, "batch_size"),
      StatusIs(absl::StatusCode::kResourceExhausted,
               "batch_size: 10 (10 decoded rows of 12 bytes take more than half of the host's free "
               "memory, 239 bytes; expected at most 9 rows)"));
  EXPECT_THAT(CheckBatchMemory(dataset, 1'000'000, 24 * kRows, "batch_size"), IsOk());
}

TEST_F(DatasetDecodeTest, FurtherTensorsOfADecoderFeedInputs) {
  config_.inputs[0].decoder = std::make_shared<const NumberDecoder>("mask");
  const DatasetOptions options = MakeOptions();
  const Dataset dataset = OpenDataset(options, Directories()).value();
  const auto check = [&] {
    return CheckInputColumns({{"inputs", dataset.input_columns, dataset.inputs}}, config_);
  };
  EXPECT_THAT(check(), RefusesField("inputs[0].decode", HasSubstr("has no input 'mask'")));
  config_.inputs.push_back({.name = "mask", .type = DataType::kInt64, .dims = {2}});
  EXPECT_THAT(check(),
              RefusesField("inputs[0].decode", HasSubstr("INT64 [1] (expected INT64 [2]")));
  config_.inputs.back().dims = {1};
  EXPECT_THAT(check(), IsOk());
}

// Row r has the list of r % 5 elements r.
class PaddedListsTest : public DatasetDecodeTest {
 protected:
  void SetUp() override {
    DatasetDecodeTest::SetUp();
    std::string lists;
    std::string ids;
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<int64_t> list(static_cast<size_t>(row % 5), row);
      absl::StrAppend(&lists, row == 0 ? "[[" : ",[", absl::StrJoin(list, ","), "]");
      absl::StrAppend(&ids, row == 0 ? "[" : ",", row);
    }
    WriteParquet(dir_.path() / "lists.parquet",
                 *MakeBatch({{"tokens", arrow::list(arrow::int64()), lists + "]"},
                             {"short", arrow::list(arrow::int32()), lists + "]"},
                             {"id", arrow::int64(), ids + "]"}}));
    config_.inputs = {{.name = "x", .type = DataType::kInt64, .dims = {-1}},
                      {.name = "mask", .type = DataType::kInt64, .dims = {-1}}};
    config_.inputs[0].pad = PadSpec{.value = -1, .mask = "mask"};
    EXPECT_THAT(MakeDecoders({}, &config_), IsOk());
  }

  DatasetOptions MakeListOptions(const std::string& column) const {
    DatasetOptions options = MakeOptions();
    options.path = "lists.parquet";
    options.inputs = {{"x", {column}}};
    options.targets = {{"target", {"id"}}};
    return options;
  }

  static void Check(const HostTensor& lists, const HostTensor& mask,
                    const std::vector<int64_t>& ids) {
    const auto width = static_cast<size_t>(lists.shape.at(1));
    int64_t longest = 1;
    std::vector<int64_t> elements;
    std::vector<int64_t> marks;
    for (const int64_t id : ids) {
      longest = std::max(longest, id % 5);
      for (size_t i = 0; i < width; ++i) {
        marks.push_back(static_cast<int64_t>(i) < id % 5 ? 1 : 0);
        elements.push_back(marks.back() == 1 ? id : -1);
      }
    }
    EXPECT_EQ(lists.shape.at(1), longest);
    EXPECT_EQ(ValuesOf<int64_t>(lists), elements);
    EXPECT_EQ(ValuesOf<int64_t>(mask), marks);
  }
};

TEST_F(PaddedListsTest, TrainingBatchesArePaddedAndHaveSimilarLengths) {
  const auto cache = RowCache::Open(dir_.path() / "cache", 1'000'000).value();
  DatasetBatches source({.data = MakeListOptions("tokens"), .batch_size = 6, .seed = 5},
                        Directories(), cache.get());
  std::string identity;
  EXPECT_EQ(source.Rows(&context_, &identity).value(), kRows);
  const auto stream = source.Open(0).value();
  int64_t widths = 0;
  for (int batch = 0; batch < 5; ++batch) {
    const TrainingBatch rows = *stream->Next().value();
    ASSERT_THAT(rows.inputs, SizeIs(2));
    Check(rows.inputs[0], rows.inputs[1], ValuesOf<int64_t>(rows.targets.at(0)));
    widths += rows.inputs[0].shape.at(1);
  }
  EXPECT_EQ(widths, 1 + 1 + 2 + 3 + 4);  // sorted by length
}

TEST_F(PaddedListsTest, InferenceRequestsArePadded) {
  DatasetInput input({MakeListOptions("tokens"), {"id"}}, Directories());
  std::string identity;
  EXPECT_EQ(input.Rows(&context_, &identity).value(), kRows);
  const auto stream = input.Open(0).value();
  const InputRows rows = *stream->Next(10, 10).value();
  ASSERT_THAT(rows.requests, SizeIs(1));
  Check(rows.requests[0].inputs.at(0), rows.requests[0].inputs.at(1),
        Int64s(*static_cast<const arrow::RecordBatch*>(rows.kept.get()), "id"));
}

TEST_F(PaddedListsTest, ColumnFitsTheInputAndItsMask) {
  const auto check = [&](const std::string& column) {
    const Dataset dataset = OpenDataset(MakeListOptions(column), Directories()).value();
    return CheckInputColumns({{"inputs", dataset.input_columns, dataset.inputs}}, config_);
  };
  EXPECT_THAT(check("tokens"), IsOk());
  EXPECT_THAT(check("short"),
              RefusesField("inputs[0].columns",
                           HasSubstr("is INT32 (expected INT64 for input 'x'; store the lists")));
}

TEST_F(PaddedListsTest, RejectsADatatype) {
  DatasetOptions options = MakeListOptions("short");
  options.inputs[0].type = DataType::kInt64;
  EXPECT_THAT(OpenDataset(options, Directories()).status(),
              RefusesField("spec.infer.data.inputs[0].datatype", HasSubstr("which is padded")));
}

}  // namespace
}  // namespace braid
