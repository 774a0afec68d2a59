// A model in stages is trained as the whole on one device is.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kDouble = 1e-12;  // as exact as float64 sums in another order are

using Stages = std::vector<StageSpec>;

TrainerSpec SpecOf(Stages stages) {
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.05});
  spec.stages = std::move(stages);
  spec.clipping.max_norm = 0.5;  // over all stages
  return spec;
}

// Steps, accumulation, forward and evaluation are those of the whole model on one worker.
void ExpectTrainsAsOne(const torch::jit::Module& module, int workers, const TrainerSpec& spec) {
  TrainerSpec one = spec;
  one.stages.clear();
  one.output_device.clear();
  TrainedModule trained(module, workers, spec);
  ASSERT_THAT(trained.status(), IsOk());
  TrainedModule whole(module, 1, one);
  for (const int64_t rows : {20, 7, 1, 5}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult ours,
                               trained.Step(Inputs(rows), Classes(rows)));
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult theirs,
                               whole.Step(Inputs(rows), Classes(rows)));
    EXPECT_NEAR(*ours.loss, *theirs.loss, kDouble);
    EXPECT_NEAR(*ours.gradient_norm, *theirs.gradient_norm, kDouble);
  }
  for (const int64_t rows : {3, 4}) {
    ASSERT_THAT(trained.ForwardBackward(Inputs(rows), Classes(rows)), IsOk());
    ASSERT_THAT(whole.ForwardBackward(Inputs(rows), Classes(rows)), IsOk());
  }
  ASSERT_THAT(trained.Update(), IsOk());
  ASSERT_THAT(whole.Update(), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult ours, trained.Forward(Inputs(9), Mode::kTrain));
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult theirs, whole.Forward(Inputs(9), Mode::kTrain));
  EXPECT_TRUE(at::allclose(View(ours.outputs[0]), View(theirs.outputs[0]), kDouble, kDouble));
  BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult evaluated,
                             trained.Evaluate(Inputs(9), Classes(9)));
  BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult expected,
                             whole.Evaluate(Inputs(9), Classes(9)));
  EXPECT_NEAR(*evaluated.loss, *expected.loss, kDouble);
  EXPECT_EQ(evaluated.metrics, expected.metrics);
  ExpectSameState(trained.state(), whole.state(), kDouble);
}

// Every way to place two stages on up to three workers, and the loss where there is no replica.
class TwoStagesTest : public ::testing::TestWithParam<std::pair<Stages, std::string>> {};
INSTANTIATE_TEST_SUITE_P(
    Placements, TwoStagesTest,
    ::testing::Values(
        std::pair(Stages{{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:1"}}}, ""),
        std::pair(Stages{{"first", {"cpu:0"}}, {"second", {"cpu:1"}}}, ""),
        std::pair(Stages{{"first", {"cpu:0"}}, {"second", {"cpu:0"}}}, ""),
        std::pair(Stages{{"first", {"cpu:2", "cpu:0", "cpu:1"}}, {"second", {"cpu:1", "cpu:2"}}},
                  ""),
        std::pair(Stages{{"first", {"cpu:1"}}, {"second", {"cpu:0", "cpu:1", "cpu:2"}}}, ""),
        std::pair(Stages{{"first", {}}, {"second", {}}}, ""),
        std::pair(Stages{{"first", {"cpu:0"}}, {"second", {"cpu:1"}}}, "cpu:2"),
        std::pair(Stages{{"first", {"cpu:0"}}, {"second", {"cpu:1"}}}, "cpu:0"),
        std::pair(Stages{{"first", {"cpu:1", "cpu:0"}}, {"second", {"cpu:0"}}}, "host")));

TEST_P(TwoStagesTest, TrainAsOne) {
  for (const LossMode mode : {LossMode::kCentral, LossMode::kPerReplica}) {
    for (const SyncMode sync : {SyncMode::kReduceBroadcast, SyncMode::kAllReduce}) {
      TrainerSpec spec = SpecOf(GetParam().first);
      spec.output_device = GetParam().second;
      spec.loss_mode = mode;
      spec.sync = sync;
      ExpectTrainsAsOne(TwoStages(), 3, spec);
    }
  }
}

TEST(StagesTest, ThreeTrainAsOne) {
  const torch::jit::Module module =
      Chain({{"a", TanhPart("A", 3, 6)}, {"b", TanhPart("B", 6, 5)}, {"c", TanhPart("C", 5, 4)}});
  ExpectTrainsAsOne(module, 3, SpecOf({{"a", {"cpu:0"}}, {"b", {"cpu:1"}}, {"c", {"cpu:2"}}}));
  ExpectTrainsAsOne(
      module, 3, SpecOf({{"a", {"cpu:0", "cpu:1"}}, {"b", {"cpu:2"}}, {"c", {"cpu:1", "cpu:0"}}}));
}

TEST(StagesTest, AnOutputDeviceOutsideTheReplicasTrainsTheWholeModelToo) {
  for (const std::string output : {"cpu:2", "cpu:1", "host"}) {
    TrainerSpec spec = SpecOf({{"", {"cpu:0", "cpu:1"}}});
    spec.output_device = output;
    ExpectTrainsAsOne(TwoStages(), 3, spec);
  }
}

// The first returns two tensors, one of them the input itself, and a third that has no gradient.
torch::jit::Module Forked() {
  torch::jit::Module first = Part("First", 3, 5);
  first.define("def forward(self, x):\n  return torch.tanh(x @ self.w + self.b), x, x.argmax(1)\n");
  torch::jit::Module second = Part("Second", 5, 4);
  second.define(R"(
def forward(self, h, x, i):
  return torch.tanh(h @ self.w + self.b) * x.sum(1).unsqueeze(1) + i.unsqueeze(1)
)");
  torch::jit::Module module = NewModule();
  module.register_module("first", first);
  module.register_module("second", second);
  module.define(R"(
def forward(self, x):
  h, s, i = self.first.forward(x)
  return self.second.forward(h, s, i)
)");
  return module;
}

// Operations outside the stages would be lost.
TEST(StagesTest, AreAllThatTheModelIs) {
  const struct {
    std::string forward;
    std::string error;
  } cases[] = {
      {"return torch.relu(self.second.forward(self.first.forward(x)))", "aten::relu"},
      {"return self.second.forward(torch.tanh(self.first.forward(x)))", "aten::tanh"},
      {"return self.second.forward(self.first.forward(x * self.scale))", "aten::mul"},
      {"return self.second.forward(self.first.forward(x)) + x.sum()", "aten::sum"},
      {"h = self.first.forward(x)\n  self.second.forward(h)\n  return h", "does not return"},
      {"return self.first.forward(x)", "does not call 'second' after 'first'"},
  };
  for (const auto& [forward, error] : cases) {
    torch::jit::Module module = NewModule();
    module.register_module("first", TanhPart("First", 3, 5));
    module.register_module("second", TanhPart("Second", 5, 4));
    module.register_buffer("scale", at::full({}, 2.0, at::kDouble));
    module.define("def forward(self, x):\n  " + forward + "\n");
    TrainedModule trained(module, 2, SpecOf({{"first", {}}, {"second", {}}}));
    EXPECT_THAT(trained.status(), RefusesField("stages", HasSubstr(error))) << forward;
  }
  // A submodule around the stages that is given more, or a stage that is.
  for (const std::string inner : {"self.a.forward(x)", "self.a.forward(x, 2)"}) {
    torch::jit::Module part = Part("Part", 3, 4);
    part.define("def forward(self, x, times: int=1):\n  return (x @ self.w + self.b) * times\n");
    torch::jit::Module around("Around");
    around.register_attribute("training", c10::BoolType::get(), true);
    around.register_module("a", part);
    around.define("def forward(self, x, other: int=1):\n  return " + inner + "\n");
    torch::jit::Module whole = NewModule();
    whole.register_module("around", around);
    whole.define("def forward(self, x):\n  return self.around.forward(x)\n");
    TrainedModule nested(whole, 2, SpecOf({{"around.a", {}}}));
    if (inner == "self.a.forward(x)") {
      EXPECT_THAT(nested.status(), IsOk());
    } else {
      EXPECT_THAT(nested.status(), RefusesField("stages", HasSubstr("does not pass 'around.a'")));
    }
  }
  const torch::jit::Module module =
      Chain({{"a", TanhPart("First", 3, 5)}, {"b", TanhPart("Second", 5, 4)}});
  TrainedModule reversed(module, 2, SpecOf({{"b", {}}, {"a", {}}}));
  EXPECT_THAT(reversed.status(), RefusesField("stages", HasSubstr("calls 'a' where 'b'")));
}

TEST(StagesTest, AStageMayChangeItsInputsInPlace) {
  torch::jit::Module first = Part("First", 3, 5);
  first.define("def forward(self, x):\n  return x @ self.w + self.b\n");
  torch::jit::Module second = Part("Second", 5, 4);
  second.define("def forward(self, h):\n  return torch.relu_(h) @ self.w + self.b\n");
  const torch::jit::Module module = Chain({{"first", first}, {"second", second}});
  ExpectTrainsAsOne(module, 2, SpecOf({{"first", {"cpu:0", "cpu:1"}}, {"second", {}}}));
  ExpectTrainsAsOne(module, 2, SpecOf({{"first", {"cpu:0"}}, {"second", {"cpu:1"}}}));
}

TEST(StagesTest, SeveralTensorsGoOn) {
  ExpectTrainsAsOne(Forked(), 2, SpecOf({{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:1"}}}));
  ExpectTrainsAsOne(Forked(), 3, SpecOf({{"first", {"cpu:0"}}, {"second", {}}}));
}

TEST(StagesTest, TellsHowEachWasSplit) {
  TrainerSpec spec = SpecOf({{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:1"}}});
  TrainedModule trained(TwoStages(), 2, spec);
  Batch batch = trained.BatchOf(Inputs(5), std::nullopt);
  batch.report_split = true;
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained->Forward(batch, false));
  std::vector<std::string> lines;
  for (const TrainingChunk& chunk : result.chunks) {
    lines.push_back(absl::StrCat(chunk.stage, " ", chunk.device, " ", chunk.rows, " ",
                                 chunk.input_shapes[0], " ", chunk.output_shapes[0]));
  }
  EXPECT_THAT(lines, ElementsAre("first cpu:0 3 [3, 3] [3, 5]", "first cpu:1 2 [2, 3] [2, 5]",
                                 "second cpu:1 5 [5, 5] [5, 4]"));
}

// A stage's failure on another worker than the output's leaves everything as it was.
TEST(StagesTest, AFailureInOneChangesNothing) {
  torch::jit::Module second = TanhPart("Second", 5, 4);
  torch::jit::Module first = Part("First", 3, 5);
  first.register_buffer("calls", at::zeros({}, at::kDouble));
  first.define(R"(
def forward(self, x):
  self.calls.add_(1)
  assert bool((x <= 100).all()), "a number is too large"
  return x @ self.w + self.b
)");
  const torch::jit::Module module = Chain({{"first", first}, {"second", second}});
  const TrainerSpec spec = SpecOf({{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:2"}}});
  TrainedModule trained(module, 3, spec);
  TrainedModule spared(module, 3, spec);
  const at::Tensor bad = Inputs(7);
  bad[6].fill_(1000);
  for (TrainedModule* model : {&trained, &spared}) {
    ASSERT_THAT(model->ForwardBackward(Inputs(5), Classes(5)), IsOk());
  }
  EXPECT_THAT(trained.Step(bad, Classes(7)), RefusesField("inputs", HasSubstr("too large")));
  ExpectSameState(trained.state(), spared.state(), 0);
  for (TrainedModule* model : {&trained, &spared}) {
    ASSERT_THAT(model->Step(Inputs(4), Classes(4)), IsOk());
  }
  ExpectSameState(trained.state(), spared.state(), 0);
}

TEST(StagesTest, WhatGoesOnIsBatched) {
  torch::jit::Module first = Part("First", 3, 5);
  first.define("def forward(self, x):\n  return (x @ self.w + self.b).sum(0)\n");
  const torch::jit::Module module = Chain({{"first", first}, {"second", TanhPart("Second", 5, 4)}});
  TrainedModule trained(module, 2, SpecOf({{"first", {"cpu:0"}}, {"second", {"cpu:1"}}}));
  EXPECT_THAT(trained.Step(Inputs(4), Classes(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stage 'first'")));
}

// A gradient of the inputs would cost a backward pass through the stage.
TEST(FrozenStagesTest, InputsAfterFrozenStagesNeedNoGradient) {
  torch::jit::Module second = Part("Second", 5, 4);
  second.define(R"(
def forward(self, x):
  assert not x.requires_grad
  return torch.tanh(x @ self.w + self.b)
)");
  const torch::jit::Module module = Chain({{"first", TanhPart("First", 3, 5)}, {"second", second}});
  TrainerSpec spec = SpecOf({{"first", {"cpu:0"}}, {"second", {"cpu:1"}}});
  TrainedModule trained(module, 2, spec);
  EXPECT_THAT(trained.Step(Inputs(6), Classes(6)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("raised an error")));
  spec.groups = {{.pattern = "^first", .frozen = true}};
  ExpectTrainsAsOne(module, 2, spec);
}

}  // namespace
}  // namespace braid
