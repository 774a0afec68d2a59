#include "server/data/encoded/decode_rows.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/encoded/row_assembly.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/number_decoder.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Texts = std::map<int64_t, std::string>;

// Column with these texts, by row. Other rows cannot be read.
EncodedColumn TextColumn(const std::string& name, const Decoder& decoder, const Texts& texts) {
  return {name, "x", &decoder,
          [texts](int64_t row, std::string* storage) -> absl::StatusOr<absl::string_view> {
            if (!texts.contains(row)) {
              return absl::NotFoundError("no such file");
            }
            *storage = texts.at(row);
            return absl::string_view(*storage);
          },
          [](int64_t row) { return absl::StrCat(" (file '", row, ".jpg')"); }};
}

TEST(DecodeRows, DecodesAllColumnsAndTheirFurtherTensors) {
  const NumberDecoder plain;
  const NumberDecoder masked("mask");
  std::vector<int64_t> rows = {5, 2};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto columns,
                             DecodeColumns({TextColumn("a", plain, {{2, "20"}, {5, "50"}}),
                                            TextColumn("b", masked, {{2, "7"}, {5, "8"}})},
                                           {.seed = 1, .epoch = 2}, &rows, nullptr));
  ASSERT_THAT(columns, SizeIs(2));
  EXPECT_EQ(columns[0][0].name, "x");
  EXPECT_THAT(ValuesOf<float>(columns[0][0]), ElementsAre(50, 5, 3, 20, 2, 3));
  ASSERT_THAT(columns[1], SizeIs(2));
  EXPECT_EQ(columns[1][1].name, "mask");
  EXPECT_THAT(ValuesOf<int64_t>(columns[1][1]), ElementsAre(1, 1));
}

TEST(DecodeRows, LeavesUnreadableRowsOutOfAllColumns) {
  const NumberDecoder decoder;
  std::vector<int64_t> rows = {0, 1, 2, 3};
  std::vector<SkippedRow> skipped;
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto columns,
      DecodeColumns({TextColumn("a", decoder, {{0, "1"}, {1, "bad"}, {2, "3"}, {3, "4"}}),
                     TextColumn("b", decoder, {{0, "1"}, {1, "2"}, {3, "4"}})},
                    {}, &rows, &skipped));
  EXPECT_THAT(rows, ElementsAre(0, 3));
  EXPECT_THAT(ValuesOf<float>(columns[0][0]), ElementsAre(1, 0, 0, 4, 3, 0));
  EXPECT_THAT(ValuesOf<float>(columns[1][0]), ElementsAre(1, 0, 0, 4, 3, 0));
  ASSERT_THAT(skipped, SizeIs(2));
  EXPECT_EQ(skipped[0].row, 1);
  EXPECT_EQ(skipped[0].error.message(),
            "column 'a', row 1: not a number (expected one) (file '1.jpg')");
  EXPECT_EQ(skipped[1].error.message(), "column 'b', row 2: no such file (file '2.jpg')");
}

TEST(DecodeRows, ReturnsTheFirstErrorUnlessRowsMayBeLeftOut) {
  const NumberDecoder decoder;
  std::vector<int64_t> rows = {0, 1};
  EXPECT_THAT(DecodeColumns({TextColumn("a", decoder, {{0, "1"}, {1, "bad"}})}, {}, &rows, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 1: not a number")));
}

TEST(DecodeRows, ReturnsErrorsThatConcernNoRow) {
  const NumberDecoder decoder;
  EncodedColumn column = TextColumn("a", decoder, {});
  column.read = [](int64_t, std::string*) -> absl::StatusOr<absl::string_view> {
    return absl::ResourceExhaustedError("no memory");
  };
  std::vector<int64_t> rows = {0};
  std::vector<SkippedRow> skipped;
  EXPECT_THAT(DecodeColumns({column}, {}, &rows, &skipped),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
}

TEST(DecodeRows, MayLeaveNoRow) {
  const NumberDecoder decoder;
  std::vector<int64_t> rows = {4};
  std::vector<SkippedRow> skipped;
  EXPECT_THAT(DecodeColumns({TextColumn("a", decoder, {})}, {}, &rows, &skipped), IsOk());
  EXPECT_THAT(rows, IsEmpty());
}

TEST(RowAssembly, JoinsPartsAndClosesGaps) {
  const std::vector<Decoder::Output> tensors = {{"x", {DataType::kFp32, {2}}},
                                                {"y", {DataType::kInt64, {}}}};
  EXPECT_EQ(RowAssembly::Parts(tensors, 5, 2), 3);
  BRAID_ASSERT_OK_AND_ASSIGN(RowAssembly assembly, RowAssembly::Create(tensors, 5, 2));
  assembly.Put(2, {MakeHost<float>("x", {1, 2}, {5, 5}), MakeHost<int64_t>("y", {1}, {50})});
  assembly.Put(0, {MakeHost<float>("x", {1, 2}, {1, 1}), MakeHost<int64_t>("y", {1}, {10})});
  assembly.Put(1, {});
  const std::vector<HostTensor> whole = assembly.Take();
  EXPECT_EQ(whole[0].name, "x");
  EXPECT_THAT(whole[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(ValuesOf<float>(whole[0]), ElementsAre(1, 1, 5, 5));
  EXPECT_THAT(ValuesOf<int64_t>(whole[1]), ElementsAre(10, 50));
}

TEST(RowAssembly, HasOnePartIfAShapeIsUnknown) {
  EXPECT_EQ(RowAssembly::Parts({{"x", {DataType::kInt64, {kUnknownDim}}}}, 100, 8), 1);
}

}  // namespace
}  // namespace braid
