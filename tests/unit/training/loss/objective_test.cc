#include "server/training/loss/objective.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/loss_modules.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Tensors = std::vector<at::Tensor>;

// Outputs `a` and `b`, FP64 [B, 3], `c`, FP64 [B], and `single`, FP32 [B].
ModelConfig Config() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"a", DataType::kFp64, {3}},
                    {"b", DataType::kFp64, {3}},
                    {"c", DataType::kFp64, {}},
                    {"single", DataType::kFp32, {}}};
  return config;
}

TrainerSpec SpecOf(std::vector<LossSpec> losses, LossMode mode = LossMode::kCentral) {
  TrainerSpec spec;
  spec.losses = std::move(losses);
  spec.loss_mode = mode;
  return spec;
}

std::shared_ptr<const Objective> Make(std::vector<LossSpec> losses,
                                      LossMode mode = LossMode::kCentral) {
  TrainerSpec spec = SpecOf(std::move(losses), mode);
  auto objective = Objective::Create(&spec, Config());
  EXPECT_THAT(objective, IsOk());
  return *objective;
}

constexpr int64_t kRows = 7;

Tensors Outputs() {
  return {at::arange(kRows * 3, at::kDouble).sin().view({kRows, 3}),
          at::arange(kRows * 3, at::kDouble).cos().view({kRows, 3}),
          at::arange(kRows, at::kDouble).sin(), at::arange(kRows, at::kFloat).cos()};
}
Tensors Slice(const Tensors& whole, int64_t start, int64_t rows) {
  Tensors part;
  for (const at::Tensor& tensor : whole) {
    part.push_back(tensor.slice(0, start, start + rows));
  }
  return part;
}

HostTensor Classes(std::string name) {
  return MakeHost<int64_t>(std::move(name), {kRows}, {0, 2, -100, 1, 2, 2, -100});
}
at::Tensor ClassesTensor() { return at::tensor({0, 2, -100, 1, 2, 2, -100}, at::kLong); }
HostTensor Values(std::string name) {
  return MakeHost<double>(std::move(name), {kRows, 3}, std::vector<double>(kRows * 3, 0.25));
}
at::Tensor ValuesTensor() { return at::full({kRows, 3}, 0.25, at::kDouble); }

std::vector<double> Ones(const Objective& objective) {
  return std::vector<double>(objective.losses().size(), 1);
}

absl::StatusOr<ObjectiveValue> Compute(const Objective& objective,
                                       const std::vector<HostTensor>& targets,
                                       GradientRequest gradient = {}) {
  BRAID_ASSIGN_OR_RETURN(const auto picked, objective.PickTargets(targets, kRows));
  return objective.Compute(Outputs(), picked, 0, kRows, Ones(objective), gradient);
}

TEST(ObjectiveCreateTest, FillsInTheSpec) {
  TrainerSpec spec = SpecOf({{.name = "mse"}, {.name = "nll", .output = "b", .target = "y"}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto objective, Objective::Create(&spec, Config()));
  EXPECT_EQ(spec.losses[0].output, "a");
  EXPECT_EQ(spec.losses[0].target, "target");
  EXPECT_EQ(spec.losses[1].ignore_index, -100);
  EXPECT_THAT(objective->takes_output(), ElementsAre(true, true, false, false));
  EXPECT_THAT(Objective::Create(&spec, Config()), IsOk());
}

TEST(ObjectiveCreateTest, NamesTheLossThatIsWrong) {
  TrainerSpec spec = SpecOf({{.name = "mse"}, {.name = "mes"}});
  EXPECT_THAT(Objective::Create(&spec, Config()),
              RefusesField("losses[1].name", HasSubstr("'mes'")));
  EXPECT_EQ(spec.losses[0].output, "");
}

TEST(ObjectiveCreateTest, TakesAsManyLossesAsTheModeDoes) {
  for (const LossMode mode : {LossMode::kCentral, LossMode::kPerReplica}) {
    TrainerSpec none = SpecOf({}, mode);
    EXPECT_THAT(Objective::Create(&none, Config()),
                RefusesField("losses", HasSubstr("at least one")));
  }
  TrainerSpec client = SpecOf({{.name = "mse"}}, LossMode::kClient);
  EXPECT_THAT(Objective::Create(&client, Config()),
              RefusesField("losses", HasSubstr("leave it empty")));
  client.losses.clear();
  EXPECT_THAT(Objective::Create(&client, Config()), IsOk());
  EXPECT_THAT(client.losses, IsEmpty());
}

TEST(ObjectiveCreateTest, AModelsLossIsItsFirstOutput) {
  TrainerSpec spec = SpecOf({}, LossMode::kModel);
  spec.unweighted_mean = true;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto objective, Objective::Create(&spec, Config()));
  ASSERT_EQ(spec.losses.size(), 1);
  EXPECT_EQ(spec.losses[0].output, "a");
  EXPECT_EQ(spec.losses[0].weight, 1);
  EXPECT_THAT(objective->takes_output(), ElementsAre(true, false, false, false));
}

TEST(ObjectiveCreateTest, AnUnweightedMeanIsOfModelsLosses) {
  TrainerSpec spec = SpecOf({{.name = "mse"}});
  spec.unweighted_mean = true;
  EXPECT_THAT(Objective::Create(&spec, Config()),
              RefusesField("unweighted_mean", HasSubstr("the model computes")));
}

TEST(PickTargetsTest, OneForEachLossNamedByItsPlaceInTheRequest) {
  const auto objective = Make({{.name = "mse", .target = "y"},
                               {.name = "nll", .target = "z"},
                               {.name = "l1", .target = "y"}});
  const HostTensor y = Values("y");
  const HostTensor z = Classes("z");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto picked, objective->PickTargets({z, y}, kRows));
  ASSERT_EQ(picked.size(), 3);
  EXPECT_EQ(picked[0].data, y.data);
  EXPECT_EQ(picked[0].name, "targets[1]");
  EXPECT_EQ(picked[1].data, z.data);
  EXPECT_EQ(picked[1].name, "targets[0]");
  EXPECT_EQ(picked[2].data, y.data);
}

TEST(PickTargetsTest, MissingUnknownOrTwice) {
  const auto objective = Make({{.name = "mse", .target = "y"}, {.name = "l1", .target = "w"}});
  const auto pick = [&](const std::vector<HostTensor>& targets) {
    return objective->PickTargets(targets, kRows);
  };
  EXPECT_THAT(pick({Values("y")}), RefusesField("targets", AllOf(HasSubstr("'w' is missing"),
                                                                 HasSubstr("expected 'w', 'y'"))));
  EXPECT_THAT(pick({Values("y"), Values("w"), Values("x")}),
              RefusesField("targets[2].name",
                           AllOf(HasSubstr("no loss takes a target 'x'"), HasSubstr("'w', 'y'"))));
  EXPECT_THAT(pick({Values("y"), Values("y")}),
              RefusesField("targets[1].name", HasSubstr("given twice")));
}

TEST(PickTargetsTest, HasTheInputsRows) {
  const auto objective = Make({{.name = "mse"}});
  EXPECT_THAT(objective->PickTargets({Values("target")}, 6),
              RefusesField("targets[0].shape", AllOf(HasSubstr("[7, 3]"), HasSubstr("6 rows"))));
  EXPECT_THAT(objective->PickTargets({MakeHost<double>("target", {}, {1})}, 1),
              RefusesField("targets[0].shape", HasSubstr("[]")));
}

TEST(PickTargetsTest, NoneWhereTheModelComputesTheLoss) {
  EXPECT_THAT(*Make({}, LossMode::kModel)->PickTargets({Values("y")}, 4), IsEmpty());
}

TEST(PickTargetsTest, TheMetricsWhereTheClientComputesTheLoss) {
  const auto objective = Make({}, LossMode::kClient);
  EXPECT_THAT(*objective->PickTargets({Values("target")}, kRows), SizeIs(1));
  EXPECT_THAT(objective->PickTargets({}, kRows), RefusesField("targets", HasSubstr("'target'")));
  EXPECT_THAT(objective->PickTargets({Values("y")}, kRows),
              RefusesField("targets[0].name", HasSubstr("expected 'target'")));
}

TEST(ObjectiveTest, IsTheWeightedSumOfItsLosses) {
  const auto objective = Make({{.name = "cross_entropy", .weight = 0.5},
                               {.name = "mse", .output = "b", .target = "y", .weight = 3},
                               {.name = "l1", .output = "a", .target = "y", .weight = -2}});
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue value,
                             Compute(*objective, {Classes("target"), Values("y")}));
  const at::Tensor a = Outputs()[0].requires_grad_(true);
  const at::Tensor b = Outputs()[1].requires_grad_(true);
  const at::Tensor reference = at::cross_entropy_loss(a, ClassesTensor()) * 0.5 +
                               at::mse_loss(b, ValuesTensor()) * 3 -
                               at::l1_loss(a, ValuesTensor()) * 2;
  EXPECT_DOUBLE_EQ(value.loss(), reference.item<double>());
  const Tensors gradients = torch::autograd::grad({reference}, {a, b});
  ASSERT_EQ(value.output_gradients.size(), 4);
  EXPECT_TRUE(at::allclose(value.output_gradients[0], gradients[0], 1e-14, 1e-16));
  EXPECT_TRUE(at::allclose(value.output_gradients[1], gradients[1], 1e-14, 1e-16));
  EXPECT_FALSE(value.output_gradients[2].defined());
  EXPECT_FALSE(value.output_gradients[3].defined());
}

TEST(ObjectiveTest, OneLossAloneIsLibTorchsToTheBit) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue value,
                             Compute(*Make({{.name = "cross_entropy"}}), {Classes("target")}));
  const at::Tensor a = Outputs()[0].requires_grad_(true);
  const at::Tensor reference = at::cross_entropy_loss(a, ClassesTensor());
  EXPECT_EQ(value.loss(), reference.item<double>());
  EXPECT_TRUE(at::equal(value.output_gradients[0], torch::autograd::grad({reference}, {a})[0]));
}

TEST(ObjectiveTest, OutputsThatNoLossTakesMayBeUndefined) {
  const auto objective = Make({{.name = "mse", .output = "b"}});
  Tensors outputs(4);
  outputs[1] = Outputs()[1];
  BRAID_ASSERT_OK_AND_ASSIGN(
      const ObjectiveValue value,
      objective->Compute(outputs, {Values("targets[0]")}, 0, kRows, {1}, {}));
  EXPECT_EQ(value.loss(), at::mse_loss(outputs[1], ValuesTensor()).item<double>());
}

TEST(ObjectiveTest, TheScaleIsOfTheGradientAlone) {
  const auto objective = Make({{.name = "mse", .weight = 2}});
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue plain, Compute(*objective, {Values("target")}));
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue scaled, Compute(*objective, {Values("target")},
                                                                  {.wanted = true, .scale = 1024}));
  EXPECT_EQ(plain.loss(), scaled.loss());
  EXPECT_TRUE(at::equal(scaled.output_gradients[0], plain.output_gradients[0] * 1024));
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue loss,
                             Compute(*objective, {Values("target")}, {.wanted = false}));
  EXPECT_EQ(loss.loss(), plain.loss());
  ASSERT_EQ(loss.output_gradients.size(), 4);
  EXPECT_FALSE(loss.output_gradients[0].defined());
}

TEST(ObjectiveTest, UnderAutocastTheGradientIsInTheOutputsType) {
  const auto objective = Make({{.name = "mse", .output = "single"}});
  Tensors outputs = Outputs();
  outputs[3] = outputs[3].to(at::kHalf);
  const HostTensor target = MakeHost<float>("targets[0]", {kRows}, std::vector<float>(kRows, 0.5F));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const ObjectiveValue value,
      objective->Compute(outputs, {target}, 0, kRows, {1}, {.wanted = true, .scale = 65536}));
  const at::Tensor widened = outputs[3].to(at::kFloat);
  EXPECT_EQ(value.loss(),
            static_cast<double>(at::mse_loss(widened, at::full({kRows}, 0.5F)).item<float>()));
  const at::Tensor gradient = (widened - 0.5F) * (2.0 / kRows) * 65536;
  EXPECT_EQ(value.output_gradients[3].scalar_type(), at::kHalf);
  EXPECT_TRUE(at::allclose(value.output_gradients[3].to(at::kFloat), gradient, 1e-3, 0));
}

TEST(ObjectiveTest, ErrorsNameLossAndTarget) {
  const auto objective = Make({{.name = "mse", .target = "y"},
                               {.name = "nll", .output = "c", .target = "z"},
                               {.name = "l1", .output = "b", .target = "w"}});
  EXPECT_THAT(Compute(*objective, {Classes("z"), Values("w"), Values("y")}),
              RefusesField("losses[1].output", HasSubstr("'c' has shape [7]")));
  EXPECT_THAT(Compute(*objective, {Classes("z"), Values("w"), Classes("y")}),
              RefusesField("targets[2].datatype", HasSubstr("target 'y'")));
}

// Every loss, where it divides by something of its own.
std::vector<LossSpec> EveryLoss() {
  std::vector<LossSpec> losses = {
      {.name = "cross_entropy"},
      {.name = "cross_entropy", .label_smoothing = 0.1},
      {.name = "cross_entropy", .class_weights = {0.5, 1, 4}},
      {.name = "cross_entropy", .label_smoothing = 0.1, .class_weights = {0.5, 1, 4}},
      {.name = "cross_entropy", .target = "y", .class_weights = {0.5, 1, 4}},
      {.name = "cross_entropy", .ignore_index = 2},
      {.name = "nll", .class_weights = {0.5, 1, 4}},
      {.name = "mse", .target = "y"},
      {.name = "l1", .target = "y"},
      {.name = "smooth_l1", .target = "y"},
      {.name = "huber", .target = "y"},
      {.name = "bce_with_logits", .target = "y", .pos_weight = {1, 2, 3}},
      {.name = "kl_div", .target = "y"},
      {.name = "kl_div", .target = "y", .reduction = Reduction::kBatchMean},
      {.name = "module",
       .target = "y",
       .module = LossModuleOf("return ((output - target) ** 4).mean()")},
  };
  const size_t means = losses.size();
  for (size_t i = 0; i + 1 < means; ++i) {
    losses.push_back(losses[i]);
    losses.back().reduction = Reduction::kSum;
  }
  losses.push_back({.name = "module",
                    .target = "y",
                    .reduction = Reduction::kSum,
                    .module = LossModuleOf("return ((output - target) ** 4).sum()")});
  return losses;
}

// The sum of the parts [0, 3), [3, 6) and [6, 7), whose last row is ignored by class losses.
ObjectiveValue InParts(const Objective& objective, const Tensors& outputs,
                       const std::vector<HostTensor>& targets) {
  const absl::StatusOr<std::vector<double>> whole = objective.Denominators(targets, 0, kRows);
  ObjectiveValue sum;
  Tensors gradients;
  for (int64_t start = 0; start < kRows; start += 3) {
    const int64_t rows = std::min<int64_t>(3, kRows - start);
    const absl::StatusOr<std::vector<double>> part = objective.Denominators(targets, start, rows);
    const absl::StatusOr<ObjectiveValue> value = objective.Compute(
        Slice(outputs, start, rows), targets, start, rows, objective.Shares(*part, *whole), {});
    EXPECT_THAT(value, IsOk());
    sum.terms.insert(sum.terms.end(), value->terms.begin(), value->terms.end());
    const at::Tensor& gradient = value->output_gradients[0];
    gradients.push_back(gradient.defined() ? gradient : at::zeros({rows, 3}, at::kDouble));
  }
  sum.output_gradients = {at::cat(gradients)};
  return sum;
}

TEST(ObjectivePartsTest, AddUpToTheWhole) {
  for (const LossSpec& spec : EveryLoss()) {
    const auto objective = Make({spec}, LossMode::kPerReplica);
    std::vector<HostTensor> targets = {Values("targets[0]")};
    if (spec.target.empty()) {
      targets = {Classes("targets[0]")};
    }
    if (spec.ignore_index) {
      targets = {MakeHost<int64_t>("targets[0]", {kRows}, {0, 2, 2, 1, 0, 0, 2})};
    }
    const Tensors outputs = Outputs();
    BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue whole,
                               objective->Compute(outputs, targets, 0, kRows, {1}, {}));
    const ObjectiveValue parts = InParts(*objective, outputs, targets);
    EXPECT_NEAR(parts.loss(), whole.loss(), 1e-12 * std::abs(whole.loss())) << spec.name;
    EXPECT_TRUE(at::allclose(parts.output_gradients[0], whole.output_gradients[0], 1e-12, 1e-15))
        << spec.name << parts.output_gradients[0] << whole.output_gradients[0];
  }
}

// Outputs `a`, `b`, `c` [B, 3], `positive` [B, 3], `cells` [B, 3, 2] and `frames` [B, 5, 3], FP64.
ModelConfig SeveralConfig() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"a", DataType::kFp64, {3}},        {"b", DataType::kFp64, {3}},
                    {"c", DataType::kFp64, {3}},        {"positive", DataType::kFp64, {3}},
                    {"cells", DataType::kFp64, {3, 2}}, {"frames", DataType::kFp64, {5, 3}}};
  return config;
}
Tensors SeveralOutputs() {
  const auto wave = [](at::IntArrayRef shape) {
    return at::arange(c10::multiply_integers(shape), at::kDouble).sin().view(shape);
  };
  const Tensors flat = {wave({kRows, 3}), wave({kRows, 3}).cos(), wave({kRows, 3}).sin()};
  return {flat[0],
          flat[1],
          flat[2],
          flat[0].exp(),
          wave({kRows, 3, 2}),
          wave({kRows, 5, 3}).log_softmax(2)};
}
HostTensor Indices(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  return MakeHost<int64_t>("targets[0]", std::move(shape), values);
}

struct SeveralCase {
  LossSpec spec;
  std::vector<HostTensor> targets;
};

std::vector<SeveralCase> SeveralCases() {
  const HostTensor pixels =
      Indices({kRows, 2}, {0, 1, 2, -100, -100, -100, 1, 1, 0, 2, -100, 1, 2, 2});
  const HostTensor tokens = Indices({kRows, 2}, {1, 2, 2, -9, 1, 1, 2, 1, 0, 0, 1, 2, 2, 2});
  const HostTensor lengths = Indices({kRows}, {2, 1, 2, 1, 0, 2, 2});
  const HostTensor steps = Indices({kRows}, {5, 4, 5, 3, 2, 5, 4});
  const HostTensor signs = Indices({kRows}, {1, -1, -1, 1, -1, 1, -1});
  return {
      {{.name = "poisson_nll", .full = true}, {Values("targets[0]")}},
      {{.name = "gaussian_nll", .outputs = {"a", "positive"}}, {Values("targets[0]")}},
      {{.name = "focal", .class_weights = {0.5, 1, 4}}, {Classes("targets[0]")}},
      {{.name = "focal", .output = "cells", .gamma = 0.5}, {pixels}},
      {{.name = "sigmoid_focal", .alpha = 0.6}, {Values("targets[0]")}},
      {{.name = "dice", .output = "cells"}, {pixels}},
      {{.name = "dice", .output = "cells"},
       {MakeHost<double>("targets[0]", {kRows, 3, 2}, std::vector<double>(kRows * 6, 0.3))}},
      {{.name = "cosine_embedding", .outputs = {"b", "c"}, .margin = 0.2}, {signs}},
      {{.name = "triplet_margin", .swap = true}, {}},
      {{.name = "ctc", .output = "frames"}, {tokens, lengths}},
      {{.name = "ctc", .output = "frames", .input_lengths = "steps"}, {tokens, lengths, steps}},
  };
}

TEST(ObjectivePartsTest, LossesOfSeveralTensorsAddUpToTheWhole) {
  for (SeveralCase& each : SeveralCases()) {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      each.spec.reduction = reduction;
      TrainerSpec spec = SpecOf({each.spec, each.spec}, LossMode::kPerReplica);
      BRAID_ASSERT_OK_AND_ASSIGN(const auto objective, Objective::Create(&spec, SeveralConfig()));
      std::vector<HostTensor> targets = each.targets;
      targets.insert(targets.end(), each.targets.begin(), each.targets.end());
      const Tensors outputs = SeveralOutputs();
      BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue whole,
                                 objective->Compute(outputs, targets, 0, kRows, {1, 1}, {}));
      ASSERT_TRUE(std::isfinite(whole.loss())) << each.spec.name;
      BRAID_ASSERT_OK_AND_ASSIGN(const auto all, objective->Denominators(targets, 0, kRows));
      double loss = 0;
      std::vector<Tensors> gradients(outputs.size());
      for (int64_t start = 0; start < kRows; start += 3) {
        const int64_t rows = std::min<int64_t>(3, kRows - start);
        BRAID_ASSERT_OK_AND_ASSIGN(const auto part, objective->Denominators(targets, start, rows));
        BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue value,
                                   objective->Compute(Slice(outputs, start, rows), targets, start,
                                                      rows, objective->Shares(part, all), {}));
        loss += value.loss();
        for (size_t o = 0; o < outputs.size(); ++o) {
          gradients[o].push_back(value.output_gradients[o]);
        }
      }
      EXPECT_NEAR(loss, whole.loss(), 1e-12 * std::abs(whole.loss())) << each.spec.name;
      for (size_t o = 0; o < outputs.size(); ++o) {
        EXPECT_EQ(whole.output_gradients[o].defined(), objective->takes_output()[o]);
        if (objective->takes_output()[o]) {
          EXPECT_TRUE(at::allclose(at::cat(gradients[o]), whole.output_gradients[o], 1e-12, 1e-15))
              << each.spec.name << " output " << o;
        }
      }
    }
  }
}

TEST(PickTargetsTest, PicksTheTargetsOfEachLoss) {
  TrainerSpec spec = SpecOf({{.name = "ctc", .output = "frames", .target = "y"},
                             {.name = "triplet_margin"},
                             {.name = "mse", .output = "a"}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto objective, Objective::Create(&spec, SeveralConfig()));
  EXPECT_TRUE(objective->needs_targets());
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto picked,
      objective->PickTargets({Values("target_lengths"), Values("target"), Values("y")}, kRows));
  const auto names = [&](size_t i) {
    std::vector<std::string> of;
    for (const HostTensor& target : objective->TargetsOf(i, picked)) {
      of.push_back(target.name);
    }
    return of;
  };
  EXPECT_THAT(names(0), ElementsAre("targets[2]", "targets[0]"));
  EXPECT_THAT(names(1), IsEmpty());
  EXPECT_THAT(names(2), ElementsAre("targets[1]"));
  EXPECT_THAT(objective->PickTargets({Values("y"), Values("target")}, kRows),
              RefusesField("targets", HasSubstr("'target_lengths' is missing")));
}

TEST(PickTargetsTest, NoneWhereTheLossesCompareOutputs) {
  TrainerSpec spec = SpecOf({{.name = "triplet_margin"}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto objective, Objective::Create(&spec, SeveralConfig()));
  EXPECT_FALSE(objective->needs_targets());
  EXPECT_THAT(*objective->PickTargets({}, kRows), IsEmpty());
  EXPECT_THAT(objective->PickTargets({Values("y")}, kRows),
              RefusesField("targets[0].name", HasSubstr("expected none")));
  EXPECT_THAT(objective->CheckTargets({}, SeveralConfig()), IsOk());
}

TEST(ObjectivePartsTest, ModelsLossesAddUpToTheMeanOverRows) {
  const auto objective = Make({{.output = "c", .weight = 2}}, LossMode::kModel);
  const Tensors outputs = Outputs();
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<double> whole,
                             objective->Denominators({}, 0, kRows));
  double sum = 0;
  for (const auto& [start, rows] : {std::pair<int64_t, int64_t>{0, 4}, {4, 3}}) {
    // The first chunk's model gives a loss a row, the second's one for all.
    Tensors chunk = Slice(outputs, start, rows);
    chunk[2] = start == 0 ? chunk[2] : chunk[2].mean();
    BRAID_ASSERT_OK_AND_ASSIGN(const auto part, objective->Denominators({}, start, rows));
    BRAID_ASSERT_OK_AND_ASSIGN(
        const ObjectiveValue value,
        objective->Compute(chunk, {}, start, rows, objective->Shares(part, whole), {}));
    EXPECT_EQ(value.output_gradients[2].sizes(), chunk[2].sizes());
    EXPECT_NEAR(value.output_gradients[2].sum().item<double>(),
                2.0 * static_cast<double>(rows) / kRows, 1e-15);
    sum += value.loss();
  }
  EXPECT_NEAR(sum, 2 * outputs[2].mean().item<double>(), 1e-15);
}

TEST(ObjectivePartsTest, APartInWhichNothingCountsHasAGradientOfZero) {
  const auto objective = Make({{.name = "cross_entropy"}}, LossMode::kPerReplica);
  const std::vector<HostTensor> targets = {Classes("targets[0]")};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto part, objective->Denominators(targets, 6, 1));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto whole, objective->Denominators(targets, 0, kRows));
  EXPECT_THAT(objective->Shares(part, whole), ElementsAre(0));
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue value,
                             objective->Compute(Slice(Outputs(), 6, 1), targets, 6, 1, {0}, {}));
  EXPECT_EQ(value.loss(), 0);
  ASSERT_EQ(value.output_gradients.size(), 4);
  EXPECT_TRUE(at::equal(value.output_gradients[0], at::zeros_like(Slice(Outputs(), 6, 1)[0])));
}

TEST(ObjectivePartsTest, AMeanOverNothingIsNan) {
  const auto objective = Make({{.name = "cross_entropy"}}, LossMode::kPerReplica);
  const std::vector<HostTensor> targets = {
      MakeHost<int64_t>("targets[0]", {kRows}, std::vector<int64_t>(kRows, -100))};
  EXPECT_TRUE(std::isnan(InParts(*objective, Outputs(), targets).loss()));
}

TEST(ObjectivePartsTest, SharesOfMeansAndSums) {
  const auto objective = Make({{.name = "mse"}, {.name = "l1", .reduction = Reduction::kSum}});
  EXPECT_THAT(objective->Shares({2, 1}, {8, 1}), ElementsAre(0.25, 1));
  EXPECT_THAT(objective->Shares({0, 1}, {0, 1}), ElementsAre(1, 1));
}

TEST(ObjectiveTest, AModuleChangesNobodysTensors) {
  for (const bool wanted : {true, false}) {
    const auto objective = Make({{.name = "module",
                                  .target = "y",
                                  .module = LossModuleOf("target.zero_()\n  return "
                                                         "output.mul_(2.0).sum()")}});
    const Tensors outputs = Outputs();
    const HostTensor target = Values("targets[0]");
    BRAID_ASSERT_OK_AND_ASSIGN(
        const ObjectiveValue value,
        objective->Compute(outputs, {target}, 0, kRows, {1}, {.wanted = wanted}));
    EXPECT_DOUBLE_EQ(value.loss(), 2 * Outputs()[0].sum().item<double>());
    EXPECT_TRUE(at::equal(outputs[0], Outputs()[0]));
    EXPECT_THAT(ValuesOf<double>(target), ::testing::Each(0.25));
  }
}

TEST(ObjectiveTest, SeveralWorkersMayComputeAtOnce) {
  const auto objective = Make(
      {{.name = "module", .target = "y", .module = LossModuleOf("return (output * target).sum()")},
       {.name = "cross_entropy", .class_weights = {1, 2, 3}}});
  const std::vector<HostTensor> targets = {Values("targets[0]"), Classes("targets[1]")};
  BRAID_ASSERT_OK_AND_ASSIGN(const ObjectiveValue alone,
                             objective->Compute(Outputs(), targets, 0, kRows, {1, 1}, {}));
  std::vector<int> same(3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int call = 0; call < 20; ++call) {
        const absl::StatusOr<ObjectiveValue> value =
            objective->Compute(Outputs(), targets, 0, kRows, {1, 1}, {});
        const bool equal = value.ok() && value->loss() == alone.loss() &&
                           at::equal(value->output_gradients[0], alone.output_gradients[0]);
        same[t] += equal ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(same, ElementsAre(20, 20, 20));
}

TEST(ObjectiveTest, AWeightOfZeroDoesNotGoWithSmoothingInParts) {
  TrainerSpec spec;
  spec.losses.emplace_back();
  spec.losses[0].name = "cross_entropy";
  spec.losses[0].label_smoothing = 0.1;
  spec.losses[0].class_weights = {1, 0, 1};
  const ModelConfig config =
      MakeConfig(8, {{"x", DataType::kFp32, {2}}}, {{"y", DataType::kFp32, {3}}});
  EXPECT_THAT(Objective::Create(&spec, config).status(), IsOk());
  spec.loss_mode = LossMode::kPerReplica;
  EXPECT_THAT(Objective::Create(&spec, config),
              RefusesField("losses[0].class_weights", ::testing::HasSubstr("class 1")));
  spec.loss_mode = LossMode::kCentral;
  spec.micro_batch = 2;
  EXPECT_THAT(Objective::Create(&spec, config),
              RefusesField("losses[0].class_weights", ::testing::HasSubstr("class 1")));
}

}  // namespace
}  // namespace braid
