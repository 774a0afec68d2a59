#include "server/models/scalar_inputs.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TensorSpec Number(DataType type, std::optional<ScalarValue> value) {
  TensorSpec spec{"power", type, {}, /*broadcast=*/true};
  spec.scalar = true;
  spec.default_value = value;
  return spec;
}

TEST(ScalarInputsTest, DescribesTypeAndDefault) {
  EXPECT_EQ(DescribeScalar(Number(DataType::kInt64, std::nullopt)), "INT64");
  EXPECT_EQ(DescribeScalar(Number(DataType::kInt64, ScalarValue(int64_t{3}))), "INT64, default 3");
  EXPECT_EQ(DescribeScalar(Number(DataType::kFp64, ScalarValue(0.5))), "FP64, default 0.5");
  EXPECT_EQ(DescribeScalar(Number(DataType::kBool, ScalarValue(true))), "BOOL, default true");
  EXPECT_EQ(DescribeScalar(Number(DataType::kFp64, ScalarValue())), "FP64, default None");
}

TEST(ScalarInputsTest, RejectsDescriptionsThatDifferFromTheModel) {
  ModelConfig config =
      MakeConfig(8, {{"x", DataType::kFp32, {4}}, Number(DataType::kInt64, std::nullopt)}, {});
  EXPECT_THAT(CheckScalars(config), IsOk());
  config.scalars = {{"power", "INT64"}};
  EXPECT_THAT(CheckScalars(config), IsOk());
  config.scalars = {{"power", "INT64, default 2"}};
  EXPECT_THAT(CheckScalars(config),
              RefusesField("parameters[\"scalar.power\"]",
                           HasSubstr("'INT64, default 2' does not match the model's 'INT64'")));
  for (const std::string name : {"scale", "x"}) {
    config.scalars = {{name, "INT64"}};
    EXPECT_THAT(CheckScalars(config),
                RefusesField("parameters[\"scalar." + name + "\"]",
                             HasSubstr("has no scalar argument '" + name + "'")));
  }
}

}  // namespace
}  // namespace braid
