#include "server/serving/row_independence.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "server/models/name_binding.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;
using Tensors = std::vector<at::Tensor>;

class RowIndependenceTest : public ::testing::Test {
 protected:
  // Tests a model of input x and output y.
  RowTest Test(const std::function<at::Tensor(const at::Tensor&)>& forward) {
    absl::StatusOr<RowTest> test =
        TestOutputs([&forward](const Tensors& inputs) -> absl::StatusOr<Tensors> {
          return Tensors{forward(inputs[0])};
        });
    EXPECT_THAT(test, IsOk());
    return test.ok() ? *test : RowTest();
  }

  absl::StatusOr<RowTest> TestOutputs(const PuppetReplica::Function& forward) {
    PuppetReplica replica([this, &forward](const Tensors& inputs) {
      rows_.push_back(inputs[0].size(0));
      seen_.push_back(inputs[0].clone());
      return forward(inputs);
    });
    return TestRowIndependence(config_, fleet_.worker(0), replica);
  }

  RowIndependence Result(const std::function<at::Tensor(const at::Tensor&)>& forward) {
    return Test(forward).result;
  }

  WorkerFleet fleet_{1};
  ModelConfig config_ =
      MakeConfig(256, {{"x", DataType::kFp32, {6}}}, {{"y", DataType::kFp32, {-1}}});
  std::vector<int64_t> rows_;
  Tensors seen_;
};

TEST_F(RowIndependenceTest, ProvesAModelThatComputesEachRowAlone) {
  const at::Tensor weight = at::randn({6, 3});
  const RowTest test = Test([&](const at::Tensor& x) { return at::tanh(at::matmul(x, weight)); });
  EXPECT_EQ(test.result, RowIndependence::kProven);
  EXPECT_THAT(test.reason, IsEmpty());
}

TEST_F(RowIndependenceTest, RunsAtMostEightBatchesOfAtMostFourRows) {
  Test([](const at::Tensor& x) { return x * 2; });
  EXPECT_THAT(rows_, AllOf(SizeIs(Le(8)), Each(Le(4))));
  rows_.clear();
  Test([](const at::Tensor& x) { return x - x.mean(); });
  EXPECT_THAT(rows_, AllOf(SizeIs(Le(8)), Each(Le(4))));
}

TEST_F(RowIndependenceTest, FindsReductionsOverRows) {
  for (const auto& forward : std::vector<std::function<at::Tensor(const at::Tensor&)>>{
           [](const at::Tensor& x) {
             return at::cat({x, x.amax(0, true).expand_as(x)}, 1);
           },
           [](const at::Tensor& x) { return x / (1 + x.std(0, true).sum()); },
           [](const at::Tensor& x) { return x - x.mean(); },
           [](const at::Tensor& x) { return x.cumsum(0); },
           [](const at::Tensor& x) { return x.softmax(0); },
           [](const at::Tensor& x) { return x.nan_to_num() / x.nan_to_num().abs().max(); },
           [](const at::Tensor& x) { return at::matmul(at::matmul(x, x.t()), x); }}) {
    const RowTest test = Test(forward);
    EXPECT_EQ(test.result, RowIndependence::kDependent);
    EXPECT_FALSE(test.approximate) << test.reason;
    EXPECT_THAT(test.reason, HasSubstr("of output 'y'"));
  }
}

TEST_F(RowIndependenceTest, FindsRowsInAnotherOrder) {
  for (const auto& forward : std::vector<std::function<at::Tensor(const at::Tensor&)>>{
           [](const at::Tensor& x) { return x.flip(0); },
           [](const at::Tensor& x) { return x.roll(1, 0); },
           [](const at::Tensor& x) { return std::get<0>(x.sort(0)); },
           [](const at::Tensor& x) { return x.select(0, 0).expand_as(x).contiguous(); }}) {
    EXPECT_EQ(Result(forward), RowIndependence::kDependent);
  }
}

TEST_F(RowIndependenceTest, FindsMixingThatIsMultipliedByZero) {
  const RowTest test = Test([](const at::Tensor& x) { return x + 0 * x.mean(0, true); });
  EXPECT_EQ(test.result, RowIndependence::kDependent);
  EXPECT_THAT(test.reason, HasSubstr("NaN"));
  EXPECT_FALSE(test.approximate);
}

TEST_F(RowIndependenceTest, FindsADependenceOnTheNumberOfRows) {
  const RowTest test = Test([](const at::Tensor& x) { return x / x.size(0); });
  EXPECT_EQ(test.result, RowIndependence::kDependent);
  EXPECT_THAT(test.reason, HasSubstr("in a batch of 1 instead of 4"));
}

TEST_F(RowIndependenceTest, FindsAnOutputThatIsAsWideAsTheBatch) {
  EXPECT_EQ(Result([](const at::Tensor& x) { return at::matmul(x, x.t()); }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, CallsOneScaleForTheBatchApproximate) {
  const RowTest test = Test([](const at::Tensor& x) {
    const at::Tensor scale = x.abs().max() / 127;
    return at::round(x / scale) * scale;
  });
  EXPECT_EQ(test.result, RowIndependence::kDependent);
  EXPECT_TRUE(test.approximate) << test.reason;
}

TEST_F(RowIndependenceTest, ComparesModelsThatDrawRandomNumbersUnderOneSeed) {
  const RowTest alone = Test([](const at::Tensor& x) { return x * at::rand_like(x); });
  EXPECT_EQ(alone.result, RowIndependence::kUnproven);
  EXPECT_THAT(alone.reason, HasSubstr("draws random numbers"));
  EXPECT_EQ(Result([](const at::Tensor& x) { return x.mean() * at::rand_like(x); }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, FindsMixingInASmallColumnOrOutput) {
  EXPECT_EQ(Result([](const at::Tensor& x) {
              return at::cat({x * 1e5, x.mean().sigmoid().expand({x.size(0), 1})}, 1);
            }),
            RowIndependence::kDependent);
  EXPECT_EQ(Result([](const at::Tensor& x) {
              return at::cat({at::arange(x.size(0)).unsqueeze(1), x * 1000}, 1);
            }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, FindsAThresholdOnTheLargestNumberOfTheBatch) {
  EXPECT_EQ(Result([](const at::Tensor& x) { return x / at::where(x.amax() > 100, 255.0, 1.0); }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, FindsTheLargestByteOfTheBatch) {
  for (const bool with_range : {false, true}) {
    config_.inputs[0].type = DataType::kUint8;
    config_.inputs[0].range =
        with_range ? std::optional<ValueRange>(ValueRange{0, 255}) : std::nullopt;
    const RowTest test = Test([](const at::Tensor& x) { return x.to(at::kFloat) / x.max(); });
    EXPECT_EQ(test.result, RowIndependence::kDependent);
    EXPECT_FALSE(test.approximate) << test.reason;
  }
}

TEST_F(RowIndependenceTest, FindsOutputsOfOtherRowsOrShapes) {
  EXPECT_EQ(Result([](const at::Tensor& x) { return x.index({x.select(1, 0).gt(0.05)}); }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, IsUnprovenIfOutputsDifferBetweenRuns) {
  int runs = 0;
  const RowTest test = Test([&runs](const at::Tensor& x) { return x * ++runs; });
  EXPECT_EQ(test.result, RowIndependence::kUnproven);
  EXPECT_THAT(test.reason, HasSubstr("differ between two runs"));
}

TEST_F(RowIndependenceTest, ReportsWhyTheModelFails) {
  const absl::StatusOr<RowTest> test = TestOutputs([](const Tensors&) -> absl::StatusOr<Tensors> {
    return absl::InternalError("no such luck");
  });
  ASSERT_THAT(test, IsOk());
  EXPECT_EQ(test->result, RowIndependence::kUnproven);
  EXPECT_THAT(test->reason, HasSubstr("no such luck"));
}

TEST_F(RowIndependenceTest, IsUnprovenIfAllOutputsAreNan) {
  EXPECT_EQ(Result([](const at::Tensor& x) { return x * NAN; }), RowIndependence::kUnproven);
}

TEST_F(RowIndependenceTest, RecognizesOneNumberPerChunk) {
  config_.outputs = {{"y", DataType::kFp32, {6}}, {"loss", DataType::kFp32, {}}};
  const absl::StatusOr<RowTest> test =
      TestOutputs([](const Tensors& inputs) -> absl::StatusOr<Tensors> {
        return Tensors{inputs[0], inputs[0].mean()};
      });
  ASSERT_THAT(test, IsOk());
  EXPECT_EQ(test->result, RowIndependence::kProven);
  EXPECT_TRUE(test->one_number);
}

TEST_F(RowIndependenceTest, KeepsIntegersInTheirRange) {
  config_.inputs[0].type = DataType::kInt64;
  config_.inputs[0].range = ValueRange{5, 9};
  EXPECT_EQ(Result([](const at::Tensor& x) { return x.to(at::kFloat); }), RowIndependence::kProven);
  for (const at::Tensor& seen : seen_) {
    EXPECT_THAT(seen.min().item<int64_t>(), Ge(5));
    EXPECT_THAT(seen.max().item<int64_t>(), Le(9));
  }
  EXPECT_EQ(Result([](const at::Tensor& x) { return x.to(at::kFloat) - x.sum(); }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, FindsMixingOfFlags) {
  config_.inputs[0].type = DataType::kBool;
  config_.inputs[0].dims = {1};
  EXPECT_EQ(Result([](const at::Tensor& x) { return x.logical_xor(x.any()).to(at::kFloat); }),
            RowIndependence::kDependent);
}

TEST_F(RowIndependenceTest, TriesLongerInputsOfAnySize) {
  config_.inputs[0].dims = {-1};
  const RowTest test =
      Test([](const at::Tensor& x) { return x.unfold(1, /*size=*/20, /*step=*/1).sum(-1); });
  EXPECT_EQ(test.result, RowIndependence::kProven) << test.reason;
}

TEST_F(RowIndependenceTest, PassesBroadcastInputsWhole) {
  config_.inputs.push_back({"weight", DataType::kFp32, {6}, /*broadcast=*/true});
  const absl::StatusOr<RowTest> test =
      TestOutputs([](const Tensors& inputs) -> absl::StatusOr<Tensors> {
        return Tensors{inputs[0] * inputs[1].sum()};
      });
  ASSERT_THAT(test, IsOk());
  EXPECT_EQ(test->result, RowIndependence::kProven);
}

TEST_F(RowIndependenceTest, RejectsOutputsThatContradictTheConfiguration) {
  config_.outputs[0].dims = {7};
  const absl::StatusOr<RowTest> test =
      TestOutputs([](const Tensors& inputs) -> absl::StatusOr<Tensors> { return inputs; });
  EXPECT_THAT(test, StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("[4, 6]"), HasSubstr("[4, 7]"))));
}

TEST_F(RowIndependenceTest, RejectsOutputsOfOtherNamesAndDatatypes) {
  config_.inputs[0].dims = {-1};
  for (const auto& [path, type] : {std::pair("y", at::kLong), {"z", at::kFloat}}) {
    const absl::StatusOr<RowTest> test = TestOutputs(
        [&, &path = path, &type = type](const Tensors& inputs) -> absl::StatusOr<Tensors> {
          const std::vector<OutputLeaf> leaves = {{path, inputs[0].to(type)}, {"w", inputs[0]}};
          BRAID_RETURN_IF_ERROR(BindOutputs(config_.outputs, leaves).status());
          return inputs;
        });
    EXPECT_THAT(test, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("output 'y'")));
  }
}

TEST_F(RowIndependenceTest, RunsAtMostMaxBatchSizeRows) {
  config_.max_batch_size = 3;
  EXPECT_EQ(Result([](const at::Tensor& x) { return x * 2; }), RowIndependence::kProven);
  EXPECT_THAT(rows_, Each(Le(3)));
}

}  // namespace
}  // namespace braid
