#include "server/data/batch_loader.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/array_source.h"
#include "server/data/npy_header.h"
#include "server/data/row_cache.h"
#include "server/data/table_source.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/number_decoder.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BatchLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<int64_t> ids = Count(0, 100);
    Put(path_, FormatNpyHeader(DataType::kInt64, {100}).value() +
                   std::string(reinterpret_cast<const char*>(ids.data()), 800));
    BRAID_ASSERT_OK_AND_ASSIGN(auto file, DataFile::Open(path_));
    BRAID_ASSERT_OK_AND_ASSIGN(source_, OpenArraySource({std::move(file)}, dir_.path()));
    BRAID_ASSERT_OK_AND_ASSIGN(store_, MapRows(*source_, {{"x", {"ids"}}}));
  }

  BatchLoader::Options MakeOptions() const {
    return {.store = store_,
            .order = std::make_shared<RowOrder>(RowOrder::Options{.rows = 100, .seed = 3}),
            .batch_size = 30,
            .end_batch = 8};
  }

  // Rows of all batches.
  static std::vector<std::vector<int64_t>> Load(BatchLoader::Options options) {
    std::vector<std::vector<int64_t>> batches;
    const auto loader = BatchLoader::Create(std::move(options)).value();
    while (true) {
      const auto batch = loader->Next();
      EXPECT_THAT(batch, IsOk());
      if (!batch.ok() || !batch->has_value()) {
        return batches;
      }
      batches.push_back(ValuesOf<int64_t>((*batch)->tensors[0]));
    }
  }

  const TempDir dir_;
  const std::filesystem::path path_ = dir_.path() / "ids.npy";
  std::unique_ptr<DataSource> source_;
  std::shared_ptr<const RowStore> store_;
};

TEST_F(BatchLoaderTest, FollowsTheOrderOfEachEpoch) {
  const BatchLoader::Options options = MakeOptions();
  const auto batches = Load(options);
  ASSERT_EQ(batches.size(), 8u);
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> expected(100);
    options.order->Fill(static_cast<int64_t>(epoch), 0, absl::MakeSpan(expected));
    std::vector<int64_t> rows;
    for (size_t b = 4 * epoch; b < 4 * epoch + 4; ++b) {
      rows.insert(rows.end(), batches[b].begin(), batches[b].end());
    }
    EXPECT_EQ(rows, expected);
  }
}

TEST_F(BatchLoaderTest, SaysWhereABatchIs) {
  BatchLoader::Options options = MakeOptions();
  options.first_batch = 7;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loader, BatchLoader::Create(options));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, loader->Next());
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->number, 7);
  EXPECT_EQ(batch->epoch, 1);
  EXPECT_EQ(batch->position, 90);
  EXPECT_EQ(batch->tensors[0].name, "x");
  EXPECT_THAT(batch->tensors[0].shape, ElementsAre(10));
  EXPECT_GE(batch->waited, absl::ZeroDuration());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto end, loader->Next());
  EXPECT_FALSE(end.has_value());
}

TEST_F(BatchLoaderTest, DoesNotDependOnThreadsMemoryOrTheFirstBatch) {
  const auto expected = Load(MakeOptions());
  for (const int threads : {1, 4}) {
    for (const size_t bytes : {0, 500, 1'000'000}) {
      BatchLoader::Options options = MakeOptions();
      options.threads = threads;
      options.max_bytes = bytes;
      EXPECT_EQ(Load(options), expected);
      options.first_batch = 5;
      EXPECT_EQ(Load(options),
                (std::vector<std::vector<int64_t>>(expected.begin() + 5, expected.end())));
    }
  }
}

class DecodingLoaderTest : public ::testing::Test {
 protected:
  // Rows 0 to 99 hold their numbers, except for those in `bad`.
  void SetUp() override {
    std::string values;
    for (int row = 0; row < 100; ++row) {
      values += row == 0 ? "[\"" : ",\"";
      values += row % 10 == 3 ? "bad\"" : std::to_string(row) + "\"";
    }
    WriteParquet(dir_.path() / "rows.parquet",
                 *MakeBatch({{"image", arrow::binary(), values + "]"}}));
    BRAID_ASSERT_OK_AND_ASSIGN(
        const auto source, OpenTableSource(DataFile::Open(dir_.path() / "rows.parquet").value()));
    BRAID_ASSERT_OK_AND_ASSIGN(cache_, RowCache::Open(dir_.path() / "cache", 1'000'000));
    BRAID_ASSERT_OK_AND_ASSIGN(store_,
                               cache_->Rows(source.get(),
                                            {{.name = "x",
                                              .columns = {"image"},
                                              .decoder = std::make_shared<const NumberDecoder>()}},
                                            [](int64_t) { return absl::OkStatus(); }));
  }

  BatchLoader::Options MakeOptions() const {
    return {.store = store_,
            .order = std::make_shared<RowOrder>(RowOrder::Options{.rows = 100, .seed = 3}),
            .batch_size = 40,
            .end_batch = 6,
            .seed = 7,
            .skip_unreadable = true};
  }

  const TempDir dir_;
  std::unique_ptr<RowCache> cache_;
  std::shared_ptr<const RowStore> store_;
};

TEST_F(DecodingLoaderTest, DoesNotDependOnThreadsOrTheFirstBatch) {
  const auto load = [](const BatchLoader::Options& options) {
    std::vector<std::vector<float>> batches;
    const auto loader = BatchLoader::Create(options).value();
    while (const auto batch = loader->Next().value()) {
      batches.push_back(ValuesOf<float>(batch->tensors[0]));
      EXPECT_EQ(batch->tensors[0].rows() + static_cast<int64_t>(batch->skipped.size()),
                batch->position == 80 ? 20 : 40);
      EXPECT_EQ(batches.back()[2], 7 + batch->epoch);
    }
    return batches;
  };
  const auto expected = load(MakeOptions());
  ASSERT_EQ(expected.size(), 6u);
  for (const int threads : {1, 3, 16}) {
    BatchLoader::Options options = MakeOptions();
    options.threads = threads;
    EXPECT_EQ(load(options), expected);
    options.first_batch = 4;
    EXPECT_EQ(load(options),
              (std::vector<std::vector<float>>(expected.begin() + 4, expected.end())));
  }
}

TEST_F(DecodingLoaderTest, DecodesNoFurtherPartsOnceItIsStopped) {
  BatchLoader::Options options = MakeOptions();
  std::atomic<int> parts = 0;
  options.stopped = [&] { return ++parts > 2; };
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loader, BatchLoader::Create(options));
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
  EXPECT_GT(parts, 2);
}

TEST_F(DecodingLoaderTest, NamesTheRowThatCannotBeDecoded) {
  BatchLoader::Options options = MakeOptions();
  options.skip_unreadable = false;
  options.threads = 4;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loader, BatchLoader::Create(options));
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("not a number (expected one)")));
}

TEST_F(DecodingLoaderTest, FailsIfNoRowOfABatchIsReadable) {
  BatchLoader::Options options = MakeOptions();
  options.order =
      std::make_shared<RowOrder>(RowOrder::Options{.rows = 100, .seed = 3, .shuffle = false});
  options.batch_size = 1;
  options.first_batch = 13;
  options.end_batch = 15;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loader, BatchLoader::Create(options));
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("all 1 rows of batch 13 are unreadable")));
}

TEST_F(BatchLoaderTest, DropsShortBatches) {
  BatchLoader::Options options = MakeOptions();
  options.drop_last = true;
  options.end_batch = 6;
  for (const auto& batch : Load(options)) {
    EXPECT_EQ(batch.size(), 30u);
  }
  options.batch_size = 101;
  EXPECT_THAT(BatchLoader::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("101 rows exceed the 100")));
}

TEST_F(BatchLoaderTest, StopsWithBatchesLeft) {
  BatchLoader::Options options = MakeOptions();
  options.threads = 3;
  options.end_batch = 1'000'000;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loader, BatchLoader::Create(options));
  EXPECT_THAT(loader->Next(), IsOk());
}

TEST_F(BatchLoaderTest, ReturnsErrorsInOrder) {
  std::filesystem::resize_file(path_, 200);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loader, BatchLoader::Create(MakeOptions()));
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kAborted, HasSubstr("ids.npy")));
}

}  // namespace
}  // namespace braid
