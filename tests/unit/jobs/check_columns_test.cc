#include "server/jobs/check_columns.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const std::string kField = "spec.train.data.inputs";

class CheckColumnsTest : public ::testing::Test {
 protected:
  CheckColumnsTest() {
    config_.name = "net";
    config_.max_batch_size = 8;
    config_.inputs = {{.name = "x", .type = DataType::kFp32, .dims = {2, -1}}};
  }

  absl::Status Check(const std::vector<TensorColumn>& tensors, const std::vector<RowType>& rows) {
    return CheckInputColumns({{kField, tensors, rows}}, config_);
  }

  ModelConfig config_;
};

TEST_F(CheckColumnsTest, AcceptsRowsWithTheShapeOfTheInput) {
  EXPECT_THAT(Check({{.name = "x", .columns = {"image"}}}, {{DataType::kFp32, {2, 7}}}), IsOk());
  EXPECT_THAT(Check({{.name = "x", .columns = {"image"}}}, {{DataType::kFp32, {kUnknownDim, 7}}}),
              IsOk());
}

TEST_F(CheckColumnsTest, RefusesOtherShapesAndDatatypes) {
  const std::vector<TensorColumn> x = {{.name = "x", .columns = {"image"}}};
  EXPECT_THAT(Check(x, {{DataType::kFp32, {3, 7}}}),
              RefusesField(kField + "[0].columns", HasSubstr("FP32 [3, 7]")));
  EXPECT_THAT(Check(x, {{DataType::kFp32, {2}}}),
              RefusesField(kField + "[0].columns", HasSubstr("expected FP32 [2, ?]")));
  EXPECT_THAT(Check(x, {{DataType::kFp64, {2, 7}}}),
              RefusesField(kField + "[0].datatype", HasSubstr("is FP64 (expected FP32")));
}

TEST_F(CheckColumnsTest, TheFirstDimensionOfAModelWithoutBatchesIsTheRows) {
  config_.max_batch_size = 0;
  config_.inputs[0].dims = {-1, 2};
  EXPECT_THAT(Check({{.name = "x", .columns = {"a"}}}, {{DataType::kFp32, {2}}}), IsOk());
}

TEST_F(CheckColumnsTest, RefusesInputsThatAreUnknownOrMissing) {
  EXPECT_THAT(Check({{.name = "y", .columns = {"image"}}}, {{DataType::kFp32, {2, 7}}}),
              RefusesField(kField + "[0].name", HasSubstr("no input 'y' (expected one of x)")));
  EXPECT_THAT(Check({}, {}), RefusesField(kField, HasSubstr("no column for input 'x'")));
}

TEST_F(CheckColumnsTest, InputsWithADefaultNeedNoColumn) {
  config_.inputs.push_back({.name = "scale", .scalar = true, .default_value = ScalarValue(1.0)});
  EXPECT_THAT(Check({{.name = "x", .columns = {"image"}}}, {{DataType::kFp32, {2, 7}}}), IsOk());
}

TEST_F(CheckColumnsTest, RefusesInputsWithoutADimensionForRows) {
  config_.inputs[0].broadcast = true;
  EXPECT_THAT(Check({{.name = "x", .columns = {"image"}}}, {{DataType::kFp32, {2, 7}}}),
              RefusesField(kField + "[0].name", HasSubstr("no dimension for rows")));
}

TEST_F(CheckColumnsTest, TargetsFeedInputsOfAModelThatComputesItsLoss) {
  config_.inputs.push_back({.name = "label", .type = DataType::kInt64, .dims = {}});
  const std::vector<TensorColumn> inputs = {{.name = "x", .columns = {"image"}}};
  const std::vector<TensorColumn> targets = {{.name = "label", .columns = {"digit"}}};
  const std::vector<RowType> input_rows = {{DataType::kFp32, {2, 7}}};
  const std::vector<RowType> target_rows = {{DataType::kInt64, {}}};
  EXPECT_THAT(CheckInputColumns(
                  {{kField, inputs, input_rows}, {"spec.train.data.targets", targets, target_rows}},
                  config_),
              IsOk());
}

}  // namespace
}  // namespace braid
