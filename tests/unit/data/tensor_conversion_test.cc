#include "server/data/tensor_conversion.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/data/tables.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<HostTensor> Tensor(const std::shared_ptr<arrow::DataType>& type,
                                  const std::string& values, int64_t first_row = 0) {
  const auto batch = MakeBatch({{"c", type, values}});
  return ToTensor(*batch->schema()->field(0), batch->column(0), first_row);
}

TEST(TensorConversionTest, SharesTheMemoryOfSlicedLists) {
  const auto whole = MakeIds(0, 5);
  const auto batch = whole->Slice(1, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor pairs,
                             ToTensor(*batch->schema()->field(1), batch->column(1), 0));
  EXPECT_THAT(pairs.shape, ElementsAre(3, 2));
  EXPECT_THAT(ValuesOf<float>(pairs), ElementsAre(1, 1.5, 2, 2.5, 3, 3.5));
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor ids,
                             ToTensor(*batch->schema()->field(0), batch->column(0), 0));
  EXPECT_THAT(ids.shape, ElementsAre(3));
  EXPECT_EQ(ids.data,
            std::static_pointer_cast<arrow::Int64Array>(whole->column(0))->raw_values() + 1);
}

TEST(TensorConversionTest, UnpacksBooleans) {
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor,
                             Tensor(arrow::boolean(), "[true, false, true]"));
  EXPECT_EQ(tensor.type, DataType::kBool);
  EXPECT_THAT(ValuesOf<char>(tensor), ElementsAre(1, 0, 1));
}

TEST(TensorConversionTest, TakesListsOfOneLength) {
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor,
                             Tensor(arrow::list(arrow::int64()), "[[1, 2], [3, 4]]"));
  EXPECT_THAT(tensor.shape, ElementsAre(2, 2));
  EXPECT_THAT(ValuesOf<int64_t>(tensor), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Tensor(arrow::list(arrow::int64()), "[[1, 2], [3, 4], [5]]", 100),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("column 'c', row 102: list of 1 values (expected 2")));
}

TEST(TensorConversionTest, NamesTheRowOfANull) {
  EXPECT_THAT(Tensor(arrow::int64(), "[1, 2, null]", 10),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("column 'c', row 12: null")));
  const auto pairs = arrow::fixed_size_list(arrow::float32(), 2);
  EXPECT_THAT(Tensor(pairs, "[[1, 2], null]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 1: null")));
  EXPECT_THAT(Tensor(pairs, "[[1, 2], [3, 4], [5, null]]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 2: null")));
}

TEST(TensorConversionTest, RejectsColumnsThatAreNotTensors) {
  EXPECT_THAT(Tensor(arrow::utf8(), R"(["a"])"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("column 'c' has type string (expected numbers")));
}

TEST(TensorConversionTest, ArraysRoundTrip) {
  const HostTensor images = MakeHost<float>("x", {2, 1, 3}, {1, 2, 3, 4, 5, 6});
  const HostTensor flags = {"x", DataType::kBool, {5}, "\1\0\0\1\1", 5, nullptr};
  const HostTensor empty = MakeHost<double>("x", {0, 4}, {});
  const HostTensor bf16 = {"x", DataType::kBf16, {2, 1}, "\x80\x3f\x00\xc0", 4, nullptr};
  for (const HostTensor& tensor : {images, flags, empty, bf16}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto array, ToArray(tensor));
    ASSERT_TRUE(array->ValidateFull().ok()) << array->ValidateFull();
    BRAID_ASSERT_OK_AND_ASSIGN(const auto field, FieldOf("x", RowTypeOf(tensor)));
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor again, ToTensor(*field, array, 0));
    EXPECT_EQ(again.type, tensor.type);
    EXPECT_EQ(again.shape, tensor.shape);
    EXPECT_EQ(ValuesOf<char>(again), ValuesOf<char>(tensor));
  }
}

TEST(TensorConversionTest, NamesTheValueThatCannotBeConverted) {
  const HostTensor labels = MakeHost<double>("label", {3, 2}, {1, 2, 3, 4, 5, 0.5});
  EXPECT_THAT(ConvertTensor(labels, DataType::kInt64, 1, 40),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("column 'label', row 42: value 0.5 of type FP64 (expected a value "
                                 "of type INT64)")));
}

}  // namespace
}  // namespace braid
