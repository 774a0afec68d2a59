#include "server/training/step/evaluation.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/loss_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

// An output FP64 [B, 3] and one FP64 [B].
ModelConfig Config() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"scores", DataType::kFp64, {3}}, {"score", DataType::kFp64, {}}};
  return config;
}

std::shared_ptr<const Objective> Make(std::vector<LossSpec> losses,
                                      LossMode mode = LossMode::kCentral) {
  TrainerSpec spec;
  spec.losses = std::move(losses);
  spec.loss_mode = mode;
  auto objective = Objective::Create(&spec, Config());
  EXPECT_THAT(objective, IsOk());
  return *objective;
}

Evaluation Of(const std::vector<std::string>& metrics, std::vector<LossSpec> losses,
              int64_t k = 2) {
  absl::StatusOr<Evaluation> evaluation = Evaluation::Create(metrics, k, Make(std::move(losses)));
  EXPECT_THAT(evaluation, IsOk());
  return *std::move(evaluation);
}

HostTensor Classes(const std::vector<int64_t>& classes) {
  return MakeHost<int64_t>("targets[0]", {static_cast<int64_t>(classes.size())}, classes);
}

// Predicts classes 2, 0, 1 and 2; the second choices are 1, 1, 2 and 0.
at::Tensor Scores() {
  return at::tensor({0.1, 0.2, 0.7, 0.6, 0.3, 0.1, 0.0, 0.9, 0.1, 0.2, 0.1, 0.7}, at::kDouble)
      .view({4, 3});
}
std::vector<at::Tensor> Outputs(const at::Tensor& scores) { return {scores, at::Tensor()}; }

TEST(EvaluationTest, CountsWhatIsRight) {
  Evaluation evaluation = Of({"accuracy", "top_k", "confusion"}, {{.name = "cross_entropy"}});
  ASSERT_THAT(evaluation.Add(Outputs(Scores()), {Classes({2, 1, 0, -100})}, 0, 4), IsOk());
  ASSERT_THAT(evaluation.Add(Outputs(Scores().slice(0, 0, 2)), {Classes({2, 2})}, 0, 2), IsOk());
  const EvaluationResult result = evaluation.Result();
  EXPECT_EQ(result.rows, 6);
  // Right: rows 0 of both; second choice: row 1.
  EXPECT_THAT(result.metrics, ElementsAre(Pair("accuracy", 2.0 / 5), Pair("top_k", 3.0 / 5)));
  EXPECT_THAT(result.confusion, ElementsAre(0, 1, 0,  //
                                            1, 0, 0,  //
                                            1, 0, 2));
}

TEST(EvaluationTest, ThereIsNothingButTheLossUnlessAskedFor) {
  Evaluation evaluation = Of({}, {{.name = "cross_entropy"}});
  ASSERT_THAT(evaluation.Add(Outputs(Scores()), {Classes({2, 1, 0, 1})}, 0, 4), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, IsEmpty());
  EXPECT_THAT(evaluation.Result().confusion, IsEmpty());
}

TEST(EvaluationTest, TopKOfFewerClassesIsAlwaysRight) {
  Evaluation evaluation = Of({"top_k"}, {{.name = "cross_entropy"}}, /*k=*/5);
  ASSERT_THAT(evaluation.Add(Outputs(Scores()), {Classes({0, 0, 0, 0})}, 0, 4), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, ElementsAre(Pair("top_k", 1.0)));
}

TEST(EvaluationTest, ClassesMayHaveMoreDimensions) {
  // Two pixels a row: [2, 3, 2].
  const at::Tensor scores = Scores().view({2, 2, 3}).transpose(1, 2);
  Evaluation evaluation = Of({"accuracy", "confusion"}, {{.name = "cross_entropy"}});
  const HostTensor target = MakeHost<int64_t>("targets[0]", {2, 2}, {2, 0, -100, 1});
  ASSERT_THAT(evaluation.Add(Outputs(scores), {target}, 0, 2), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, ElementsAre(Pair("accuracy", 2.0 / 3)));
  EXPECT_THAT(evaluation.Result().confusion, ElementsAre(1, 0, 0, 0, 0, 1, 0, 0, 1));
}

TEST(EvaluationTest, MeasuresDistances) {
  Evaluation evaluation = Of({"mse", "mae"}, {{.name = "huber", .output = "score"}});
  const at::Tensor output = at::tensor({1.0, 2.0, -1.0}, at::kDouble);
  const HostTensor target = MakeHost<double>("targets[0]", {3}, {0, 4, -1});
  ASSERT_THAT(evaluation.Add({{}, output}, {target}, 0, 3), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, ElementsAre(Pair("mae", 1.0), Pair("mse", 5.0 / 3)));
}

// Logits of two rows, three classes and two positions. The predicted classes are 2, 0, 1 and 1.
at::Tensor Logits() {
  return at::tensor({-1.0, 2.0, 0.5, -3.0, 1.0, -2.0, -1.0, -2.0, 3.0, 0.5, -2.0, -1.0},
                    at::kDouble)
      .view({2, 3, 2});
}

TEST(EvaluationTest, ComparesLogitsWithMasks) {
  Evaluation evaluation =
      Of({"binary_accuracy", "iou"}, {{.name = "bce_with_logits", .output = "scores"}});
  // Differs from the prediction in the first element, of class 0, and in the last, of class 2.
  const HostTensor target =
      MakeHost<double>("targets[0]", {2, 3, 2}, {1, 1, 0.75, 0, 1, 0, 0, 0, 1, 1, 0, 1});
  ASSERT_THAT(evaluation.Add(Outputs(Logits().slice(0, 0, 1)), {target}, 0, 1), IsOk());
  ASSERT_THAT(evaluation.Add(Outputs(Logits().slice(0, 1, 2)), {target}, 1, 1), IsOk());
  // Intersections over unions: 1 of 2, 3 of 3 and 1 of 2 elements.
  EXPECT_THAT(evaluation.Result().metrics,
              ElementsAre(Pair("binary_accuracy", 10.0 / 12), Pair("iou", (0.5 + 1 + 0.5) / 3)));
}

TEST(EvaluationTest, IntersectionOverUnionOfTheClassesThatOccur) {
  Evaluation evaluation = Of({"iou", "accuracy"}, {{.name = "dice", .ignore_index = 7}});
  const HostTensor target = MakeHost<int64_t>("targets[0]", {2, 2}, {2, 0, 0, 7});
  ASSERT_THAT(evaluation.Add(Outputs(Logits()), {target}, 0, 2), IsOk());
  // Class 0: 1 of 2. Class 1: predicted once, never right. Class 2: 1 of 1.
  EXPECT_THAT(evaluation.Result().metrics,
              ElementsAre(Pair("accuracy", 2.0 / 3), Pair("iou", (0.5 + 0 + 1) / 3)));
  Evaluation absent = Of({"iou"}, {{.name = "dice"}});
  const HostTensor zeros = MakeHost<int64_t>("targets[0]", {2, 2}, {2, 0, 2, 2});
  ASSERT_THAT(absent.Add(Outputs(Logits().roll({1}, {1})), {zeros}, 0, 2), IsOk());
  EXPECT_THAT(absent.Add(Outputs(Logits().narrow(1, 0, 2)),
                         {MakeHost<int64_t>("targets[0]", {2, 2}, {0, 0, 1, 1})}, 0, 2),
              StatusIs(kFailed, HasSubstr("iou: the batch has 2 classes, earlier batches had 3")));
}

TEST(EvaluationTest, CountsTheErrorsOfGreedyDecoding) {
  // The likeliest classes are 1, 1, 0, 2 and 2, 0, 2, 1.
  const at::Tensor best = at::tensor({1, 1, 0, 2, 2, 0, 2, 1}, at::kLong).view({2, 4});
  const at::Tensor frames = at::one_hot(best, 3).to(at::kDouble).log_softmax(2);
  const HostTensor tokens = MakeHost<int64_t>("targets[0]", {2, 2}, {1, 2, 2, 1});
  const HostTensor lengths = MakeHost<int64_t>("targets[1]", {2}, {2, 2});
  Evaluation evaluation = Of({"label_error_rate"}, {{.name = "ctc"}});
  ASSERT_THAT(evaluation.Add(Outputs(frames.slice(0, 0, 1)), {tokens, lengths}, 0, 1), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, ElementsAre(Pair("label_error_rate", 0.0)));
  ASSERT_THAT(evaluation.Add(Outputs(frames.slice(0, 1, 2)), {tokens, lengths}, 1, 1), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, ElementsAre(Pair("label_error_rate", 1.0 / 4)));
  // Without the last two steps, the second row is decoded as 2.
  Evaluation shorter = Of({"label_error_rate"}, {{.name = "ctc", .input_lengths = "steps"}});
  const HostTensor steps = MakeHost<int64_t>("targets[2]", {2}, {4, 2});
  ASSERT_THAT(shorter.Add(Outputs(frames), {tokens, lengths, steps}, 0, 2), IsOk());
  EXPECT_THAT(shorter.Result().metrics, ElementsAre(Pair("label_error_rate", 1.0 / 4)));
}

TEST(EvaluationTest, TheLossIsThatOfOneBatch) {
  const std::vector<LossSpec> losses = {
      {.name = "cross_entropy", .weight = 0.5, .class_weights = {0.5, 1, 4}},
      {.name = "nll", .reduction = Reduction::kSum, .weight = 2}};
  Evaluation evaluation = Of({}, losses);
  const HostTensor all = Classes({2, 1, -100, -100});
  for (const auto& [start, rows] : {std::pair<int64_t, int64_t>{0, 1}, {1, 1}, {2, 2}}) {
    ASSERT_THAT(
        evaluation.Add(Outputs(Scores().slice(0, start, start + rows)), {all, all}, start, rows),
        IsOk());
  }
  const at::Tensor target = at::tensor({2, 1, -100, -100}, at::kLong);
  const double mean =
      at::cross_entropy_loss(Scores(), target, at::tensor({0.5, 1.0, 4.0}, at::kDouble))
          .item<double>();
  const double sum = at::nll_loss(Scores(), target, {}, at::Reduction::Sum).item<double>();
  EXPECT_NEAR(*evaluation.Result().loss, 0.5 * mean + 2 * sum, 1e-14);
}

TEST(EvaluationTest, OverNothingIsNan) {
  Evaluation evaluation = Of({"accuracy"}, {{.name = "cross_entropy"}});
  ASSERT_THAT(evaluation.Add(Outputs(Scores()), {Classes({-100, -100, -100, -100})}, 0, 4), IsOk());
  EXPECT_TRUE(std::isnan(*evaluation.Result().loss));
  EXPECT_TRUE(std::isnan(evaluation.Result().metrics["accuracy"]));
  EXPECT_EQ(evaluation.Result().rows, 4);
}

TEST(EvaluationTest, AModelsOwnLossIsAMeanOverRows) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      Evaluation evaluation,
      Evaluation::Create({}, 5, Make({{.output = "score"}}, LossMode::kModel)));
  ASSERT_THAT(evaluation.Add({{}, at::scalar_tensor(2.0, at::kDouble)}, {}, 0, 3), IsOk());
  ASSERT_THAT(evaluation.Add({{}, at::scalar_tensor(6.0, at::kDouble)}, {}, 3, 1), IsOk());
  EXPECT_DOUBLE_EQ(*evaluation.Result().loss, 3);
}

TEST(EvaluationTest, MeasuresClassesOfAModulesLoss) {
  const LossSpec loss = {.name = "module", .module = LossModuleOf("return output.sum()")};
  Evaluation evaluation = Of({"accuracy", "confusion"}, {loss});
  ASSERT_THAT(evaluation.Add(Outputs(Scores()), {Classes({2, 0, 1, 1})}, 0, 4), IsOk());
  EXPECT_THAT(evaluation.Result().metrics, ElementsAre(Pair("accuracy", 0.75)));
  EXPECT_THAT(evaluation.Add(Outputs(Scores()), {Classes({2, 0, 1, -100})}, 0, 4),
              RefusesField("targets[0]", HasSubstr("class index -100 in row 3")));
}

TEST(EvaluationTest, RefusesUnknownMetrics) {
  const auto objective = Make({{.name = "mse"}});
  EXPECT_THAT(Evaluation::Create({"mse", "f1"}, 5, objective),
              RefusesField("metrics[1]", AllOf(HasSubstr("there is no metric 'f1'"),
                                               HasSubstr("accuracy, top_k, confusion, mse, mae"))));
  EXPECT_THAT(Evaluation::Create({"mse", "mae", "mse"}, 5, objective),
              RefusesField("metrics[2]", HasSubstr("given twice")));
  EXPECT_THAT(Evaluation::Create({"top_k"}, 0, objective),
              RefusesField("k", HasSubstr("expected at least 1")));
  EXPECT_THAT(Evaluation::Create({"accuracy"}, 0, objective), IsOk());
}

TEST(EvaluationTest, WhereTheClientComputesTheLossThereAreMetricsAlone) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      Evaluation evaluation,
      Evaluation::Create({"accuracy", "confusion"}, 5, Make({}, LossMode::kClient)));
  ASSERT_THAT(evaluation.Add(Outputs(Scores()), {Classes({2, 1, -100, 2})}, 0, 4), IsOk());
  const EvaluationResult result = evaluation.Result();
  EXPECT_EQ(result.loss, std::nullopt);
  EXPECT_EQ(result.rows, 4);
  EXPECT_THAT(result.metrics, ElementsAre(Pair("accuracy", 2.0 / 3)));
  EXPECT_THAT(result.confusion, ElementsAre(0, 0, 0,  //
                                            1, 0, 0,  //
                                            0, 0, 2));
}

// No loss has looked at the output before.
TEST(EvaluationTest, AMetricIsOfAnOutputWithARowForEachOfTheBatch) {
  for (const at::Tensor& output : {at::scalar_tensor(1.0), at::zeros({2, 3}, at::kDouble)}) {
    BRAID_ASSERT_OK_AND_ASSIGN(Evaluation evaluation,
                               Evaluation::Create({"mse"}, 5, Make({}, LossMode::kClient)));
    const HostTensor target = MakeHost<double>("targets[0]", {4}, {0, 4, -1, 2});
    EXPECT_THAT(evaluation.Add(Outputs(output), {target}, 0, 4),
                StatusIs(kFailed, HasSubstr("metrics[0]: mse needs an output with a row")));
  }
}

TEST(EvaluationTest, NeedsALossOrAMetricAndATarget) {
  EXPECT_THAT(Evaluation::Create({}, 5, Make({}, LossMode::kClient)),
              StatusIs(kFailed, AllOf(HasSubstr("the client computes"),
                                      HasSubstr("at least one of accuracy, top_k"))));
  EXPECT_THAT(Evaluation::Create({"mse"}, 5, Make({}, LossMode::kModel)),
              StatusIs(kFailed, HasSubstr("metrics[0]: mse needs a target, but no loss has one")));
  EXPECT_THAT(Evaluation::Create({"label_error_rate"}, 5, Make({{.name = "mse"}})),
              StatusIs(kFailed, HasSubstr("expected ctc as the first loss")));
}

TEST(EvaluationTest, AMetricThatDoesNotGoWithTheTarget) {
  const HostTensor values = MakeHost<double>("targets[0]", {4, 3}, std::vector<double>(12));
  EXPECT_THAT(Of({"mse", "accuracy"}, {{.name = "mse"}}).Add(Outputs(Scores()), {values}, 0, 4),
              RefusesField("metrics[1]", AllOf(HasSubstr("accuracy is measured by class indices"),
                                               HasSubstr("'target' is FP64 [4, 3]"))));
  EXPECT_THAT(Of({"mae"}, {{.name = "cross_entropy"}})
                  .Add(Outputs(Scores()), {Classes({0, 1, 2, 0})}, 0, 4),
              RefusesField("metrics[0]", HasSubstr("mae is measured by numbers [4, 3]")));
  const HostTensor numbers = MakeHost<double>("targets[0]", {3}, {0, 4, -1});
  EXPECT_THAT(
      Of({"confusion"}, {{.name = "mse", .output = "score"}})
          .Add({{}, at::zeros({3}, at::kDouble)}, {numbers}, 0, 3),
      RefusesField("metrics[0]", HasSubstr("confusion needs an output of shape [rows, classes], "
                                           "but 'score' has shape [3]")));
}

TEST(EvaluationTest, ChecksMetricsWithoutData) {
  HostTensor label = Classes({0});
  label.name = "target";
  const HostTensor value = MakeHost<double>("target", {1}, {0});
  EXPECT_THAT(
      Of({"accuracy", "confusion"}, {{.name = "cross_entropy"}}).CheckTargets({label}, Config()),
      IsOk());
  EXPECT_THAT(
      Of({"mae", "top_k"}, {{.name = "mse", .output = "score"}}).CheckTargets({value}, Config()),
      RefusesField("metrics[1]", HasSubstr("'score' has shape [-1]")));
  EXPECT_THAT(Of({"mae"}, {{.name = "cross_entropy"}}).CheckTargets({label}, Config()),
              RefusesField("metrics[0]", HasSubstr("mae is measured by numbers")));
}

TEST(EvaluationTest, ConfusionIsOfSoManyClasses) {
  Evaluation many = Of({"confusion"}, {{.name = "cross_entropy"}});
  EXPECT_THAT(many.Add(Outputs(at::zeros({1, 5000}, at::kDouble)), {Classes({1})}, 0, 1),
              StatusIs(kFailed, HasSubstr("the batch has 5000 classes (expected at most 2048)")));
  Evaluation other = Of({"confusion"}, {{.name = "cross_entropy"}});
  ASSERT_THAT(other.Add(Outputs(at::zeros({1, 3}, at::kDouble)), {Classes({1})}, 0, 1), IsOk());
  EXPECT_THAT(other.Add(Outputs(at::zeros({1, 4}, at::kDouble)), {Classes({1})}, 0, 1),
              StatusIs(kFailed, HasSubstr("the batch has 4 classes, earlier batches had 3")));
}

}  // namespace
}  // namespace braid
