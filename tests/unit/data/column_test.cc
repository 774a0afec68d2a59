#include "server/data/column.h"

#include "arrow/extension/fixed_shape_tensor.h"
#include "arrow/type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

std::optional<RowType> RowOf(const std::shared_ptr<arrow::DataType>& type) {
  return ColumnOf(*arrow::field("c", type)).row;
}

TEST(ColumnTest, DescribesTensors) {
  EXPECT_EQ(RowOf(arrow::int64()), (RowType{DataType::kInt64, {}}));
  EXPECT_EQ(RowOf(arrow::fixed_size_list(arrow::fixed_size_list(arrow::uint8(), 4), 3)),
            (RowType{DataType::kUint8, {3, 4}}));
  EXPECT_EQ(RowOf(arrow::list(arrow::fixed_size_list(arrow::float64(), 2))),
            (RowType{DataType::kFp64, {kUnknownDim, 2}}));
  EXPECT_EQ(RowOf(arrow::extension::fixed_shape_tensor(arrow::float32(), {2, 5})),
            (RowType{DataType::kFp32, {2, 5}}));
  // As pyarrow writes it.
  EXPECT_EQ(RowOf(arrow::extension::fixed_shape_tensor(arrow::float32(), {2, 5}, {0, 1})),
            (RowType{DataType::kFp32, {2, 5}}));
  EXPECT_EQ(RowOf(arrow::extension::fixed_shape_tensor(arrow::float32(), {2, 5}, {1, 0})),
            std::nullopt);
}

TEST(ColumnTest, OtherTypesAreNotTensors) {
  EXPECT_EQ(RowOf(arrow::utf8()), std::nullopt);
  EXPECT_EQ(RowOf(arrow::timestamp(arrow::TimeUnit::SECOND)), std::nullopt);
  EXPECT_EQ(RowOf(arrow::fixed_size_binary(2)), std::nullopt);
  EXPECT_EQ(RowOf(arrow::list(arrow::list(arrow::float32()))), std::nullopt);
  EXPECT_EQ(ColumnOf(*arrow::field("c", arrow::utf8())).arrow_type, "string");
}

TEST(ColumnTest, FieldsRoundTrip) {
  for (const RowType& row : {RowType{DataType::kBool, {}}, RowType{DataType::kBf16, {3}},
                             RowType{DataType::kFp16, {}}, RowType{DataType::kFp32, {1, 28, 28}}}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto field, FieldOf("c", row));
    EXPECT_EQ(ColumnOf(*field).row, row) << field->ToString();
  }
  EXPECT_THAT(FieldOf("c", {DataType::kFp32, {kUnknownDim}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FP32 [?]")));
}

TEST(SchemaDifferenceTest, NamesTheFirstDifference) {
  const auto id = arrow::field("id", arrow::int64());
  const auto x = arrow::field("x", arrow::float32());
  const arrow::Schema expected({id, x});
  const auto difference = [&](const arrow::FieldVector& fields) {
    return SchemaDifference(arrow::Schema(fields), expected, "'a'");
  };
  EXPECT_EQ(difference({id, x}), "");
  EXPECT_EQ(difference({id}), "no column 'x' (expected it, as in 'a')");
  EXPECT_EQ(difference({id, x, arrow::field("y", arrow::int8())}),
            "unexpected column 'y' ('a' has no such column)");
  EXPECT_EQ(difference({x, id}), "column 1 is 'x' (expected 'id', as in 'a')");
  EXPECT_EQ(difference({id, arrow::field("x", arrow::float64(), false)}),
            "column 'x' has type double not null (expected float, as in 'a')");
}

}  // namespace
}  // namespace braid
