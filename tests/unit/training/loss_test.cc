#include "server/training/loss.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Outputs `logits` and `probs`, FP64 [B, 3], and `ids`, INT64 [B].
ModelConfig Config() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"logits", DataType::kFp64, {3}},
                    {"probs", DataType::kFp64, {3}},
                    {"ids", DataType::kInt64, {}}};
  return config;
}

Loss Make(const LossSpec& spec) {
  const absl::StatusOr<Loss> loss = Loss::Create(spec, Config());
  EXPECT_THAT(loss, IsOk());
  return *loss;
}

at::Tensor Output() { return at::arange(12, at::kDouble).sin().view({4, 3}); }
HostTensor Classes(const std::vector<int64_t>& classes) {
  return MakeHost<int64_t>("target", {static_cast<int64_t>(classes.size())}, classes);
}
HostTensor Values(double first) {
  std::vector<double> values(12, 0.25);
  values[7] = first;
  return MakeHost<double>("target", {4, 3}, values);
}

// Compares loss and gradient with LibTorch's own of `expected(output)`.
template <typename Expected>
void ExpectSame(const LossSpec& spec, const HostTensor& target, Expected expected) {
  const at::Tensor output = Output().requires_grad_(true);
  const at::Tensor reference = expected(output);
  BRAID_ASSERT_OK_AND_ASSIGN(const LossValue value,
                             Make(spec).Compute(Output(), target, /*with_gradient=*/true));
  EXPECT_EQ(value.loss, reference.item<double>());
  EXPECT_TRUE(at::equal(value.output_gradient, torch::autograd::grad({reference}, {output})[0]));
}

TEST(LossComputeTest, CrossEntropyOfClasses) {
  const at::Tensor target = at::tensor({0, 2, 1, -100}, at::kLong);
  for (const auto& [ours, theirs] :
       {std::pair{Reduction::kMean, at::Reduction::Mean}, {Reduction::kSum, at::Reduction::Sum}}) {
    for (const double smoothing : {0.0, 0.1}) {
      const int64_t reduction = theirs;
      ExpectSame({.name = "cross_entropy", .reduction = ours, .label_smoothing = smoothing},
                 Classes({0, 2, 1, -100}), [&](const at::Tensor& output) {
                   return at::cross_entropy_loss(output, target, {}, reduction, -100, smoothing);
                 });
    }
  }
}

TEST(LossComputeTest, IgnoredClassesDoNotCount) {
  ExpectSame({.name = "cross_entropy", .ignore_index = 1}, Classes({0, 1, 1, 2}),
             [](const at::Tensor& output) {
               const at::Tensor counted = at::stack({output[0], output[3]});
               return at::cross_entropy_loss(counted, at::tensor({0, 2}, at::kLong));
             });
}

TEST(LossComputeTest, CrossEntropyOfProbabilities) {
  ExpectSame({.name = "cross_entropy"}, Values(0.5), [](const at::Tensor& output) {
    at::Tensor target = at::full({4, 3}, 0.25, at::kDouble);
    target.flatten()[7] = 0.5;
    return at::cross_entropy_loss(output, target);
  });
}

TEST(LossComputeTest, CrossEntropyOfClassesWithMoreDimensions) {
  const at::Tensor output = at::arange(24, at::kDouble).sin().view({2, 3, 4});
  const HostTensor target = MakeHost<int64_t>("target", {2, 4}, {0, 1, 2, 0, 1, 2, 0, 1});
  BRAID_ASSERT_OK_AND_ASSIGN(const LossValue value,
                             Make({.name = "cross_entropy"}).Compute(output, target, false));
  const at::Tensor classes = at::arange(8).remainder(3).view({2, 4});
  EXPECT_EQ(value.loss, at::cross_entropy_loss(output, classes).item<double>());
  EXPECT_FALSE(value.output_gradient.defined());
}

TEST(LossComputeTest, MeanSquaredError) {
  for (const auto& [ours, theirs] :
       {std::pair{Reduction::kMean, at::Reduction::Mean}, {Reduction::kSum, at::Reduction::Sum}}) {
    const int64_t reduction = theirs;
    ExpectSame({.name = "mse", .reduction = ours}, Values(0.25), [&](const at::Tensor& output) {
      return at::mse_loss(output, at::full({4, 3}, 0.25, at::kDouble), reduction);
    });
  }
}

TEST(LossComputeTest, AClassOutOfRangeNamesItsRow) {
  const Loss loss = Make({.name = "cross_entropy"});
  for (const int64_t wrong : {int64_t{3}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(loss.Compute(Output(), Classes({0, 2, wrong, 9}), true),
                RefusesField("targets[0]", AllOf(HasSubstr("class index " + std::to_string(wrong)),
                                                 HasSubstr("row 2"), HasSubstr("'logits'"),
                                                 HasSubstr("expected 0 to 2"))));
  }
}

TEST(LossComputeTest, NanNamesItsRow) {
  for (const char* name : {"mse", "cross_entropy"}) {
    EXPECT_THAT(Make({.name = name}).Compute(Output(), Values(kNan), true),
                RefusesField("targets[0]", AllOf(HasSubstr("NaN"), HasSubstr("row 2"))));
  }
}

TEST(LossComputeTest, ATargetOfAnotherDatatypeSaysWhatIsTaken) {
  const HostTensor floats = MakeHost<float>("target", {4, 3}, std::vector<float>(12));
  EXPECT_THAT(Make({.name = "mse"}).Compute(Output(), floats, true),
              RefusesField("targets[0].datatype",
                           AllOf(HasSubstr("FP32 [4, 3]"), HasSubstr("takes FP64 [4, 3]"))));
  const HostTensor ints = MakeHost<int32_t>("target", {4}, std::vector<int32_t>(4));
  EXPECT_THAT(Make({.name = "cross_entropy"}).Compute(Output(), ints, true),
              RefusesField("targets[0].datatype",
                           AllOf(HasSubstr("INT32 [4]"), HasSubstr("INT64 [4] (class indices)"),
                                 HasSubstr("FP64 [4, 3] (class probabilities)"))));
  EXPECT_THAT(Make({.name = "mse"}).Compute(Output(), Classes({0, 1, 2, 0}), true),
              RefusesField("targets[0].datatype", HasSubstr("INT64 [4]")));
}

TEST(LossComputeTest, ATargetOfAnotherShapeSaysWhatIsTaken) {
  const HostTensor wide = MakeHost<double>("target", {4, 2}, std::vector<double>(8));
  EXPECT_THAT(Make({.name = "mse"}).Compute(Output(), wide, true),
              RefusesField("targets[0].shape", HasSubstr("takes FP64 [4, 3]")));
  const HostTensor column = MakeHost<int64_t>("target", {4, 1}, {0, 1, 2, 0});
  EXPECT_THAT(Make({.name = "cross_entropy"}).Compute(Output(), column, true),
              RefusesField("targets[0].shape", HasSubstr("INT64 [4] (class indices)")));
}

TEST(LossComputeTest, CrossEntropyNeedsClasses) {
  EXPECT_THAT(Make({.name = "cross_entropy"}).Compute(Output()[0], Classes({0, 1, 2}), true),
              RefusesField("loss.output", HasSubstr("[rows, classes, ...]")));
}

TEST(LossComputeTest, IgnoreIndexDoesNotGoWithProbabilities) {
  const Loss loss = Make({.name = "cross_entropy", .ignore_index = 1});
  absl::Status status;
  EXPECT_NO_THROW(status = loss.Compute(Output(), Values(0.5), true).status());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace braid
