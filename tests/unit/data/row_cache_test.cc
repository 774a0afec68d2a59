#include "server/data/row_cache.h"

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/array_source.h"
#include "server/data/npy_header.h"
#include "server/data/table_source.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/number_decoder.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/data/tables.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<TensorColumn> kColumns = {{"x", {"x"}}, {"target", {"id"}, DataType::kInt32}};

const PackProgress kIgnore = [](int64_t) { return absl::OkStatus(); };

class RowCacheTest : public ::testing::Test {
 protected:
  std::unique_ptr<RowCache> Open(int64_t max_bytes = 1'000'000) const {
    return RowCache::Open(cache_, max_bytes).value();
  }
  std::unique_ptr<DataSource> Source(const arrow::RecordBatch& batch,
                                     const std::string& name = "ids.parquet") const {
    WriteParquet(dir_.path() / name, batch);
    return OpenTableSource(DataFile::Open(dir_.path() / name).value()).value();
  }
  std::vector<std::string> Files() const { return Names(cache_); }

  const TempDir dir_;
  const std::filesystem::path cache_ = dir_.path() / "cache";
};

TEST_F(RowCacheTest, GathersRowsOfATable) {
  const auto cache = Open();
  const auto source = Source(*MakeIds(0, 100));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store, cache->Rows(source.get(), kColumns, kIgnore));
  EXPECT_EQ(store->rows(), 100);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, store->Gather({99, 3}));
  EXPECT_EQ(tensors[0].name, "x");
  EXPECT_THAT(tensors[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(ValuesOf<float>(tensors[0]), ElementsAre(99, 99.5, 3, 3.5));
  EXPECT_EQ(tensors[1].name, "target");
  EXPECT_EQ(tensors[1].type, DataType::kInt32);
  EXPECT_THAT(ValuesOf<int32_t>(tensors[1]), ElementsAre(99, 3));
}

TEST_F(RowCacheTest, PacksEncodedValuesOfAnyLength) {
  const auto decoder = std::make_shared<const NumberDecoder>();
  const std::vector<TensorColumn> columns = {
      {.name = "x", .columns = {"image"}, .decoder = decoder}, {"target", {"id"}}};
  const auto batch = MakeBatch({{"id", arrow::int64(), "[5, 6, 7, 8]"},
                                {"image", arrow::binary(), R"(["1", "2000", null, "bad"])"}});
  const auto source = Source(*batch);
  for (int opened = 0; opened < 2; ++opened) {  // The second time, they are packed already.
    const auto cache = Open();
    BRAID_ASSERT_OK_AND_ASSIGN(const auto store, cache->Rows(source.get(), columns, kIgnore));
    EXPECT_EQ(store->rows(), 4);
    EXPECT_TRUE(store->decodes());
    EXPECT_EQ(store->row_bytes(), 3 * sizeof(float) + sizeof(int64_t));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, store->Gather({1, 0}, {.seed = 4}));
    EXPECT_EQ(tensors[0].name, "x");
    EXPECT_THAT(ValuesOf<float>(tensors[0]), ElementsAre(2000, 1, 4, 1, 0, 4));
    EXPECT_THAT(ValuesOf<int64_t>(tensors[1]), ElementsAre(6, 5));
    EXPECT_THAT(store->Gather({1, 2}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                HasSubstr("column 'image', row 2: null")));
    std::vector<SkippedRow> skipped;
    BRAID_ASSERT_OK_AND_ASSIGN(const auto rest, store->Gather({3, 1, 2}, {}, &skipped));
    EXPECT_THAT(ValuesOf<int64_t>(rest[1]), ElementsAre(6));
    EXPECT_THAT(skipped, SizeIs(2));
    EXPECT_THAT(Files(), SizeIs(1));
  }
}

// Decoder of rows that are padded to the longest one. Decode() must not be called.
class PaddingDecoder final : public Decoder {
 public:
  const std::vector<Output>& outputs() const override { return outputs_; }
  absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> /*rows*/, const DecodeOptions& /*options*/,
      std::vector<UnreadableRow>* /*unreadable*/) const override {
    return absl::UnimplementedError("not expected");
  }

 private:
  const std::vector<Output> outputs_ = {{"", {DataType::kInt64, {kUnknownDim}}}};
};

TEST_F(RowCacheTest, KnowsTheLengthsOfValuesThatArePadded) {
  const auto cache = Open();
  const auto source = Source(*MakeBatch({{"text", arrow::utf8(), R"(["four", null, ""])"}}));
  const auto rows = [&](std::shared_ptr<const Decoder> decoder) {
    return cache
        ->Rows(source.get(), {{.name = "x", .columns = {"text"}, .decoder = std::move(decoder)}},
               kIgnore)
        .value();
  };
  const auto padded = rows(std::make_shared<const PaddingDecoder>());
  EXPECT_TRUE(padded->pads());
  EXPECT_EQ(padded->PaddedLength(0), 4);
  EXPECT_EQ(padded->PaddedLength(1), 0);
  EXPECT_EQ(padded->PaddedLength(2), 0);
  EXPECT_FALSE(rows(std::make_shared<const NumberDecoder>())->pads());
}

TEST_F(RowCacheTest, ReadsFilesWhosePathsItPacked) {
  Put(dir_.path() / "a.txt", "12");
  const std::vector<TensorColumn> columns = {
      {.name = "x",
       .columns = {"path"},
       .decoder = std::make_shared<const NumberDecoder>(),
       .files =
           std::make_shared<const FileReader>(dir_.path(), std::vector<std::string>{dir_.path()})}};
  const auto source = Source(*MakeBatch({{"path", arrow::utf8(), R"(["none.txt", "a.txt"])"}}));
  const auto cache = Open();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store, cache->Rows(source.get(), columns, kIgnore));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, store->Gather({1}));
  EXPECT_THAT(ValuesOf<float>(tensors[0]), ElementsAre(12, 1, 0));
  EXPECT_THAT(store->Gather({0}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("row 0"), HasSubstr("(file 'none.txt')"))));
}

TEST_F(RowCacheTest, PacksAgainOnlyIfTheFileOrTheColumnsDiffer) {
  const auto source = Source(*MakeIds(0, 100));
  ASSERT_THAT(Open()->Rows(source.get(), kColumns, kIgnore), IsOk());
  ASSERT_THAT(Files(), SizeIs(1));
  const auto written = std::filesystem::last_write_time(cache_ / Files()[0]);
  ASSERT_THAT(Open()->Rows(source.get(), kColumns, kIgnore), IsOk());
  ASSERT_THAT(Files(), SizeIs(1));
  EXPECT_EQ(std::filesystem::last_write_time(cache_ / Files()[0]), written);
  ASSERT_THAT(Open()->Rows(source.get(), {{"x", {"x"}}}, kIgnore), IsOk());
  EXPECT_THAT(Files(), SizeIs(2));
  const auto changed = Source(*MakeIds(0, 101));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store, Open()->Rows(changed.get(), kColumns, kIgnore));
  EXPECT_EQ(store->rows(), 101);
  EXPECT_THAT(Files(), SizeIs(3));
}

TEST_F(RowCacheTest, JoinsColumnsOfTablesAndArrays) {
  const auto cache = Open();
  const auto batch = MakeBatch({{"a", arrow::int64(), "[1, 2]"}, {"b", arrow::int64(), "[3, 4]"}});
  const auto table = Source(*batch);
  for (const char* name : {"a", "b"}) {
    const auto& column = static_cast<const arrow::Int64Array&>(*batch->GetColumnByName(name));
    Put(dir_.path() / absl::StrCat(name, ".npy"),
        FormatNpyHeader(DataType::kInt64, {2}).value() +
            std::string(reinterpret_cast<const char*>(column.raw_values()), 16));
  }
  const auto arrays = OpenArraySource({DataFile::Open(dir_.path() / "a.npy").value(),
                                       DataFile::Open(dir_.path() / "b.npy").value()},
                                      dir_.path())
                          .value();
  for (DataSource* const source : {table.get(), arrays.get()}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto store, cache->Rows(source, {{"x", {"b", "a"}}}, kIgnore));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, store->Gather({1, 0}));
    EXPECT_THAT(tensors[0].shape, ElementsAre(2, 2));
    EXPECT_THAT(ValuesOf<int64_t>(tensors[0]), ElementsAre(4, 2, 3, 1));
  }
}

TEST_F(RowCacheTest, DistinguishesScalesThatLookAlike) {
  const auto source = Source(*MakeIds(0, 10));
  const double scales[] = {1 / 255.0, 0.00392157};
  for (const double scale : scales) {
    BRAID_ASSERT_OK_AND_ASSIGN(
        const auto store,
        Open()->Rows(source.get(), {{"x", {"id"}, DataType::kFp64, scale}}, kIgnore));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, store->Gather({7}));
    EXPECT_THAT(ValuesOf<double>(tensors[0]), ElementsAre(7 * scale));
  }
}

TEST_F(RowCacheTest, RemovesTheLeastRecentlyUsedFilesButNoneInUse) {
  // 12 bytes per row, and a header.
  const auto cache = Open(30'000);
  const auto a = Source(*MakeIds(0, 1000), "a.parquet");
  const auto b = Source(*MakeIds(0, 1000), "b.parquet");
  const auto c = Source(*MakeIds(0, 1000), "c.parquet");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto used, cache->Rows(a.get(), kColumns, kIgnore));
  const std::string kept = Files()[0];
  ASSERT_THAT(cache->Rows(b.get(), kColumns, kIgnore), IsOk());
  ASSERT_THAT(Files(), SizeIs(2));
  ASSERT_THAT(cache->Rows(c.get(), kColumns, kIgnore), IsOk());
  ASSERT_THAT(Files(), SizeIs(2));
  EXPECT_THAT(Files(), ::testing::Contains(kept));
  EXPECT_THAT(used->Gather({5}), IsOk());
}

TEST_F(RowCacheTest, ReportsTheRowsAndStops) {
  WriteIpc(dir_.path() / "parts.arrow", {MakeIds(0, 10), MakeIds(10, 30)});
  const auto source = OpenTableSource(DataFile::Open(dir_.path() / "parts.arrow").value()).value();
  const auto cache = Open();
  std::vector<int64_t> reported;
  EXPECT_THAT(cache->Rows(source.get(), kColumns,
                          [&](int64_t rows) {
                            reported.push_back(rows);
                            return rows < 30 ? absl::OkStatus() : absl::CancelledError("stop");
                          }),
              StatusIs(absl::StatusCode::kCancelled, "stop"));
  EXPECT_THAT(reported, ElementsAre(0, 10, 30));
  EXPECT_THAT(Files(), IsEmpty());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store, cache->Rows(source.get(), kColumns, kIgnore));
  EXPECT_EQ(store->rows(), 30);
}

TEST_F(RowCacheTest, PacksDifferentTablesAtTheSameTime) {
  const auto a = Source(*MakeIds(0, 100), "a.parquet");
  const auto b = Source(*MakeIds(0, 200), "b.parquet");
  const auto cache = Open();
  std::shared_ptr<const RowStore> other;
  ASSERT_THAT(cache->Rows(a.get(), kColumns,
                          [&](int64_t) {
                            other = cache->Rows(b.get(), kColumns, kIgnore).value();
                            return absl::OkStatus();
                          }),
              IsOk());
  EXPECT_EQ(other->rows(), 200);
}

TEST_F(RowCacheTest, PacksATableOnceForSeveralUsersWhichMayStopToWait) {
  const auto source = Source(*MakeIds(0, 100));
  const auto cache = Open();
  absl::Notification packing;
  absl::Notification waits;
  std::thread packer([&] {
    EXPECT_THAT(cache->Rows(source.get(), kColumns,
                            [&](int64_t rows) {
                              if (rows == 0) {
                                packing.Notify();
                                waits.WaitForNotification();
                              }
                              return absl::OkStatus();
                            }),
                IsOk());
  });
  packing.WaitForNotification();
  EXPECT_THAT(
      cache->Rows(source.get(), kColumns, [](int64_t) { return absl::CancelledError("stop"); }),
      StatusIs(absl::StatusCode::kCancelled, "stop"));
  std::vector<int64_t> reported;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store,
                             cache->Rows(source.get(), kColumns, [&](int64_t rows) {
                               reported.push_back(rows);
                               if (!waits.HasBeenNotified()) {
                                 waits.Notify();
                               }
                               return absl::OkStatus();
                             }));
  packer.join();
  EXPECT_EQ(store->rows(), 100);
  EXPECT_THAT(reported, ::testing::Not(IsEmpty()));
  EXPECT_THAT(Files(), SizeIs(1));
}

TEST_F(RowCacheTest, LimitsTheBytesOfATable) {
  const auto source = Source(*MakeIds(0, 1000));
  EXPECT_THAT(Open(5'000)->Rows(source.get(), kColumns, kIgnore),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("5000 bytes")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(RowCacheTest, RemovesLeftoversOfAnInterruptedRun) {
  std::filesystem::create_directory(cache_);
  Put(cache_ / "0123.rows.tmp", "rest");
  Open();
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(RowCacheTest, PacksADamagedFileAgain) {
  const auto source = Source(*MakeIds(0, 100));
  ASSERT_THAT(Open()->Rows(source.get(), kColumns, kIgnore), IsOk());
  Truncate(cache_ / Files()[0]);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store, Open()->Rows(source.get(), kColumns, kIgnore));
  EXPECT_EQ(store->rows(), 100);
}

TEST_F(RowCacheTest, NamesTheRowThatCannotBePacked) {
  const auto nulls = Source(*MakeBatch({{"x", arrow::float32(), "[1, null]"}}), "nulls.parquet");
  EXPECT_THAT(Open()->Rows(nulls.get(), {{"x", {"x"}}}, kIgnore),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("column 'x', row 1: null")));
  const auto text = Source(*MakeBatch({{"x", arrow::utf8(), R"(["a"])"}}), "text.parquet");
  EXPECT_THAT(Open()->Rows(text.get(), {{"x", {"x"}}}, kIgnore),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("type string")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(RowCacheTest, ReportsAFullDisk) {
  const auto source = Source(*MakeIds(0, 1000));
  const auto cache = Open();
  const FileSizeLimit limit(4096);
  EXPECT_THAT(cache->Rows(source.get(), kColumns, kIgnore),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cache")));
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace braid
