#include "server/models/input_check.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

// Model with inputs x FP32 [B, 2] and ids INT64 [B, any].
ModelConfig Batched() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.inputs = {{"x", DataType::kFp32, {2}}, {"ids", DataType::kInt64, {-1}}};
  return config;
}

HostTensor X(int64_t rows, int64_t columns = 2) {
  return MakeHost<float>("x", {rows, columns}, Floats(static_cast<size_t>(rows * columns)));
}
HostTensor Ids(int64_t rows, int64_t columns = 3) {
  return MakeHost<int64_t>("ids", {rows, columns},
                           std::vector<int64_t>(static_cast<size_t>(rows * columns)));
}

absl::StatusOr<std::vector<HostTensor>> Check(std::vector<HostTensor> tensors) {
  return CheckInputs(Batched(), std::move(tensors), "inputs");
}

TEST(CheckInputsTest, ReturnsTensorsInTheModelsOrder) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto inputs, Check({Ids(4), X(4)}));
  ASSERT_EQ(inputs.size(), 2);
  EXPECT_EQ(inputs[0].name, "x");
  EXPECT_EQ(inputs[1].name, "ids");
}

TEST(CheckInputsTest, AcceptsMoreRowsThanMaxBatchSize) {
  EXPECT_THAT(Check({X(1000), Ids(1000)}), IsOk());
}

TEST(CheckInputsTest, AcceptsAnySizeOfDynamicDims) {
  EXPECT_THAT(Check({X(4), Ids(4, 1)}), IsOk());
  EXPECT_THAT(Check({X(4), Ids(4, 0)}), IsOk());
}

// Model with the input ids of `Element` [B], from `min` to `max`.
template <typename Element>
absl::Status CheckRanged(DataType type, ValueRange range, const std::vector<Element>& values) {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.inputs = {{"ids", type, {}}};
  config.inputs[0].range = range;
  const auto rows = static_cast<int64_t>(values.size());
  HostTensor ids{"ids", type, {rows}, values.data(), values.size() * sizeof(Element), nullptr};
  return CheckInputs(config, {std::move(ids)}, "inputs").status();
}

TEST(CheckInputsTest, AcceptsValuesInRange) {
  EXPECT_THAT(CheckRanged<int64_t>(DataType::kInt64, {0, 9}, {0, 9, 5}), IsOk());
  EXPECT_THAT(CheckRanged<int8_t>(DataType::kInt8, {-128, 1000}, {-128, 127}), IsOk());
  EXPECT_THAT(CheckRanged<uint8_t>(DataType::kUint8, {-5, 255}, {0, 255}), IsOk());
}

TEST(CheckInputsTest, NamesTheFirstValueOutOfRange) {
  EXPECT_THAT(CheckRanged<int64_t>(DataType::kInt64, {0, 9}, {3, 10, -1}),
              RefusesField("inputs[0]", AllOf(HasSubstr("10 at index 1"), HasSubstr("'ids'"),
                                              HasSubstr("(expected 0 to 9)"))));
  EXPECT_THAT(CheckRanged<int32_t>(DataType::kInt32, {0, 9}, {3, -1}),
              RefusesField("inputs[0]", HasSubstr("-1 at index 1")));
  EXPECT_THAT(CheckRanged<uint64_t>(DataType::kUint64, {0, 9}, {~uint64_t{0}}),
              RefusesField("inputs[0]", HasSubstr("18446744073709551615 at index 0")));
  EXPECT_THAT(CheckRanged<uint8_t>(DataType::kUint8, {300, 400}, {200}),
              RefusesField("inputs[0]", HasSubstr("200 at index 0")));
}

TEST(CheckInputsTest, LimitsRowsWithoutElements) {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.inputs = {{"x", DataType::kFp32, {-1}}};
  const auto check = [&](int64_t rows) {
    return CheckInputs(config, {{"x", DataType::kFp32, {rows, 0}, nullptr, 0, nullptr}}, "inputs")
        .status();
  };
  EXPECT_THAT(check(8), IsOk());
  EXPECT_THAT(check(int64_t{1} << 40),
              RefusesField("inputs", AllOf(HasSubstr("1099511627776 rows without elements"),
                                           HasSubstr("at most 8"))));
}

TEST(CheckInputsTest, AddsDefaultsOfScalars) {
  ModelConfig config = Batched();
  config.inputs.push_back({"top", DataType::kInt64, {}, /*broadcast=*/true});
  config.inputs.back().scalar = true;
  EXPECT_THAT(CheckInputs(config, {X(4), Ids(4)}, "inputs"),
              RefusesField("inputs", HasSubstr("'top' is missing")));
  config.inputs.back().default_value = ScalarValue(int64_t{3});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto inputs, CheckInputs(config, {X(4), Ids(4)}, "inputs"));
  ASSERT_EQ(inputs.size(), 3);
  EXPECT_TRUE(inputs[2].broadcast);
  EXPECT_TRUE(inputs[2].shape.empty());
  EXPECT_EQ(*static_cast<const int64_t*>(inputs[2].data), 3);
}

TEST(CheckInputsTest, RejectsUnknownName) {
  HostTensor wrong = X(4);
  wrong.name = "y";
  EXPECT_THAT(Check({Ids(4), wrong}),
              RefusesField("inputs[1].name", AllOf(HasSubstr("model 'm' has no input 'y'"),
                                                   HasSubstr("(expected 'x', 'ids')"))));
}

TEST(CheckInputsTest, RejectsDuplicateName) {
  EXPECT_THAT(Check({X(4), X(4), Ids(4)}),
              RefusesField("inputs[1].name", HasSubstr("duplicate input 'x'")));
}

TEST(CheckInputsTest, RejectsMissingInput) {
  EXPECT_THAT(Check({X(4)}), RefusesField("inputs", AllOf(HasSubstr("input 'ids' is missing"),
                                                          HasSubstr("takes 'x', 'ids'"))));
  EXPECT_THAT(Check({}), RefusesField("inputs", HasSubstr("input 'x' is missing")));
}

TEST(CheckInputsTest, RejectsWrongDatatype) {
  const HostTensor wrong = MakeHost<double>("x", {4, 2}, std::vector<double>(8));
  EXPECT_THAT(Check({wrong, Ids(4)}),
              RefusesField("inputs[0].datatype", AllOf(HasSubstr("FP64 does not match input 'x'"),
                                                       HasSubstr("(expected FP32)"))));
}

TEST(CheckInputsTest, RejectsWrongDimension) {
  EXPECT_THAT(
      Check({X(4, 3), Ids(4)}),
      RefusesField("inputs[0].shape", AllOf(HasSubstr("[4, 3] does not fit input 'x'"),
                                            HasSubstr("expected [-1, 2], -1 is any size"))));
}

TEST(CheckInputsTest, RejectsWrongRank) {
  const HostTensor flat = MakeHost<float>("x", {4}, Floats(4));
  const HostTensor deep = MakeHost<float>("x", {4, 2, 1}, Floats(8));
  const HostTensor scalar = MakeHost<float>("x", {}, Floats(1));
  for (const HostTensor& wrong : {flat, deep, scalar}) {
    EXPECT_THAT(Check({wrong, Ids(4)}),
                RefusesField("inputs[0].shape", HasSubstr(ShapeString(wrong.shape))));
  }
}

TEST(CheckInputsTest, RejectsZeroRows) {
  EXPECT_THAT(Check({X(0), Ids(0)}),
              RefusesField("inputs[0].shape",
                           AllOf(HasSubstr("[0, 2]"), HasSubstr("expected at least 1"))));
}

TEST(CheckInputsTest, RejectsInputsWithDifferentRows) {
  EXPECT_THAT(Check({X(4), Ids(5)}),
              RefusesField("inputs", AllOf(HasSubstr("'x' [4, 2]"), HasSubstr("'ids' [5, 3]"),
                                           HasSubstr("different numbers of rows"))));
}

// Model with inputs ids [B, seq] and patches [B, 8*seq, 2], seq from 2 to 16.
absl::Status CheckVariable(int64_t length, int64_t patches) {
  ModelConfig config = Batched();
  config.inputs = {{"ids", DataType::kInt64, {-1}}, {"patches", DataType::kFp32, {-1, 2}}};
  config.inputs[0].variable_dims = {{.dim = 0, .symbol = "seq", .min = 2, .max = 16}};
  config.inputs[1].variable_dims = {{.dim = 0, .symbol = "seq", .factor = 8, .min = 2, .max = 16}};
  const HostTensor given =
      MakeHost<float>("patches", {3, patches, 2}, Floats(static_cast<size_t>(3 * patches * 2)));
  return CheckInputs(config, {Ids(3, length), given}, "inputs").status();
}

TEST(CheckInputsTest, AcceptsSizesWithinTheBounds) {
  EXPECT_THAT(CheckVariable(2, 16), IsOk());
  EXPECT_THAT(CheckVariable(16, 128), IsOk());
}

TEST(CheckInputsTest, RejectsSizesOutsideOfTheBounds) {
  EXPECT_THAT(CheckVariable(17, 136),
              RefusesField("inputs[0].shape", HasSubstr("dim 1 of input 'ids' is 17 (expected 2 to "
                                                        "16; model 'm' was exported")));
  EXPECT_THAT(CheckVariable(1, 8), RefusesField("inputs[0].shape", HasSubstr("'ids' is 1")));
  EXPECT_THAT(CheckVariable(3, 25),
              RefusesField("inputs[1].shape",
                           HasSubstr("'patches' is 25 (expected a multiple of 8, 16 to 128")));
}

TEST(CheckInputsTest, NamesTheSmallestSizeIfThereIsNoLargestOne) {
  ModelConfig config = Batched();
  config.inputs = {{"ids", DataType::kInt64, {-1}}};
  config.inputs[0].variable_dims = {{.dim = 0, .symbol = "seq", .min = 2}};
  EXPECT_THAT(CheckInputs(config, {Ids(3, 1)}, "inputs").status(),
              RefusesField("inputs[0].shape", HasSubstr("'ids' is 1 (expected at least 2; model")));
}

TEST(CheckInputsTest, RejectsDifferentSizesOfOneSymbol) {
  EXPECT_THAT(CheckVariable(3, 32),
              RefusesField("inputs[1].shape",
                           HasSubstr("dim 1 of input 'patches' is 32, but dim 1 of input 'ids' is "
                                     "3 (expected 24: both depend on 'seq')")));
}

TEST(CheckInputsTest, ShowsShapesWithTheBatchWhereClientsHaveIt) {
  ModelConfig config = Batched();
  config.inputs = {{"x", DataType::kFp32, {-1, 2}}, {"ids", DataType::kInt64, {3}}};
  config.inputs[0].batch_dim = 1;
  config.inputs[0].variable_dims = {{.dim = 0, .symbol = "time", .min = 1, .max = 8}};
  const auto check = [&config](const HostTensor& x) {
    return CheckInputs(config, {x, Ids(4)}, "inputs").status();
  };
  const auto x = [](int64_t rows, int64_t time, int64_t features) {
    return MakeHost<float>("x", {rows, time, features},
                           Floats(static_cast<size_t>(rows * time * features)));
  };
  EXPECT_THAT(check(x(4, 5, 2)), IsOk());
  EXPECT_THAT(check(x(4, 5, 3)),
              RefusesField("inputs[0].shape", AllOf(HasSubstr("[5, 4, 3] does not fit"),
                                                    HasSubstr("expected [-1, -1, 2]"))));
  EXPECT_THAT(check(X(4)), RefusesField("inputs[0].shape", HasSubstr("[4, 2] does not fit")));
  EXPECT_THAT(check(x(0, 5, 2)),
              RefusesField("inputs[0].shape", HasSubstr("[5, 0, 2] of input 'x' has 0 rows")));
  EXPECT_THAT(check(x(4, 9, 2)),
              RefusesField("inputs[0].shape", HasSubstr("dim 0 of input 'x' is 9")));
  EXPECT_THAT(check(x(3, 5, 2)),
              RefusesField("inputs", HasSubstr("'x' [5, 3, 2], 'ids' [4, 3] (expected dim 1 of 'x' "
                                               "equal to dim 0 of 'ids')")));
}

TEST(CheckInputsTest, AcceptsBroadcastInputWithoutBatchDimension) {
  ModelConfig config = Batched();
  config.inputs[0].broadcast = true;  // x, now of shape [2]
  const HostTensor whole = MakeHost<float>("x", {2}, Floats(2));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto inputs, CheckInputs(config, {whole, Ids(5)}, "inputs"));
  EXPECT_TRUE(inputs[0].broadcast);
  EXPECT_FALSE(inputs[1].broadcast);
  EXPECT_EQ(RowsOf(inputs), 5);
  EXPECT_THAT(CheckInputs(config, {X(5), Ids(5)}, "inputs"),
              RefusesField("inputs[0].shape", HasSubstr("expected [2]")));
}

TEST(CheckInputsTest, NamesTheCallersField) {
  EXPECT_THAT(CheckInputs(Batched(), {X(4, 3)}, "chunks"),
              RefusesField("chunks[0].shape", HasSubstr("chunks[0].shape: ")));
}

TEST(CheckInputsTest, ChecksWholeShapesOfUnbatchedModel) {
  ModelConfig config = Batched();
  config.max_batch_size = 0;
  config.inputs = {{"x", DataType::kFp32, {3, 2}}, {"ids", DataType::kInt64, {}}};
  const HostTensor id = MakeHost<int64_t>("ids", {}, {1});
  EXPECT_THAT(CheckInputs(config, {X(3), id}, "inputs"), IsOk());
  EXPECT_THAT(CheckInputs(config, {X(4), id}, "inputs"),
              RefusesField("inputs[0].shape", HasSubstr("expected [3, 2]")));
}

}  // namespace
}  // namespace braid
