#include "server/data/tensor_column.h"

#include <string>
#include <vector>

#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/data_source.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/data/tables.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<arrow::RecordBatch> MakeTable() {
  return MakeBatch({{"age", arrow::float32(), "[30, 40, 50]"},
                    {"income", arrow::float32(), "[1, 2, 3]"},
                    {"children", arrow::int64(), "[0, 1, 2]"},
                    {"pair", arrow::fixed_size_list(arrow::float32(), 2), "[[0,1],[2,3],[4,5]]"},
                    {"name", arrow::utf8(), R"(["a", "b", "c"])"}});
}

absl::StatusOr<RowType> TypeOf(const TensorColumn& tensor) {
  return TensorRowType(ColumnsOf(*MakeTable()->schema()).value(), tensor);
}

TEST(TensorColumnTest, SharesTheMemoryOfAColumn) {
  const auto batch = MakeTable();
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor, ReadTensor(*batch, {"x", {"pair"}}, 0));
  EXPECT_EQ(tensor.name, "x");
  EXPECT_THAT(tensor.shape, ElementsAre(3, 2));
  const auto& list = static_cast<const arrow::FixedSizeListArray&>(*batch->column(3));
  EXPECT_EQ(tensor.data, static_cast<const arrow::FloatArray&>(*list.values()).raw_values());
}

TEST(TensorColumnTest, JoinsColumnsOfNumbers) {
  const auto batch = MakeTable()->Slice(1);
  BRAID_ASSERT_OK_AND_ASSIGN(
      const HostTensor tensor,
      ReadTensor(*batch, {"x", {"income", "age", "children"}, DataType::kFp32, 2}, 1));
  EXPECT_EQ(tensor.name, "x");
  EXPECT_THAT(tensor.shape, ElementsAre(2, 3));
  EXPECT_THAT(ValuesOf<float>(tensor), ElementsAre(4, 80, 2, 6, 100, 4));
}

TEST(TensorColumnTest, JoinsMoreRowsThanABlock) {
  const auto batch = MakeIds(0, 1000)->SelectColumns({0}).ValueOrDie();
  for (const DataType type : {DataType::kUint16, DataType::kInt64}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor, ReadTensor(*batch, {"x", {"id"}, type}, 0));
    const auto twice = arrow::RecordBatch::Make(
        arrow::schema({batch->schema()->field(0), arrow::field("same", arrow::int64())}), 1000,
        {batch->column(0), batch->column(0)});
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor joined,
                               ReadTensor(*twice, {"x", {"id", "same"}, type}, 0));
    EXPECT_EQ(joined.bytes, 2 * tensor.bytes);
    const size_t size = DataTypeSize(type);
    for (size_t row : {0, 255, 256, 999}) {
      const std::string element(static_cast<const char*>(tensor.data) + row * size, size);
      EXPECT_EQ(std::string(static_cast<const char*>(joined.data) + 2 * row * size, 2 * size),
                element + element);
    }
  }
}

TEST(TensorColumnTest, DerivesTheTypeOfRows) {
  EXPECT_EQ(TypeOf({"x", {"pair"}}).value(), (RowType{DataType::kFp32, {2}}));
  EXPECT_EQ(TypeOf({"x", {"age"}}).value(), (RowType{DataType::kFp32, {}}));
  EXPECT_EQ(TypeOf({"x", {"age", "income"}}).value(), (RowType{DataType::kFp32, {2}}));
  EXPECT_EQ(TypeOf({"x", {"age", "children"}, DataType::kFp64}).value(),
            (RowType{DataType::kFp64, {2}}));
}

TEST(TensorColumnTest, RejectsColumnsThatDoNotFit) {
  const auto invalid = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(TypeOf({"x", {}}), invalid("no column"));
  EXPECT_THAT(TypeOf({"x", {"weight"}}), invalid("unknown column 'weight'"));
  EXPECT_THAT(TypeOf({"x", {"name"}}), invalid("type string"));
  EXPECT_THAT(TypeOf({"x", {"age", "pair"}}), invalid("column 'pair' has rows of FP32 [2]"));
  EXPECT_THAT(TypeOf({"x", {"age", "children"}}), invalid("has datatype INT64 (expected FP32"));
  EXPECT_THAT(TypeOf({"x", {"children"}, DataType::kInt32, 2}), invalid("scaled as INT32"));
}

TEST(TensorColumnTest, ReadsEachColumnOnce) {
  EXPECT_THAT(ColumnsToRead({{"x", {"a", "b"}}, {"y", {"b"}}, {"z", {"c"}}}),
              ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace braid
