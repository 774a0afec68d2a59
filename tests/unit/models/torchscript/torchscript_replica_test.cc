#include "server/models/torchscript/torchscript_replica.h"

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "c10/core/GradMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StrEq;
using Tensors = std::vector<at::Tensor>;

ModelConfig Config() {
  ModelConfig config;
  config.inputs = {{"x", DataType::kFp32, {}}};
  config.outputs = {{"y", DataType::kFp32, {}}};
  return config;
}

at::Tensor Trainable(double value) { return at::full({2}, value).requires_grad_(true); }

// y = x · w + b, b not used while evaluating; `count` counts the calls in training mode.
std::unique_ptr<Replica> Affine() {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", Trainable(3), /*is_buffer=*/false);
  module.register_parameter("b", Trainable(1), /*is_buffer=*/false);
  module.register_buffer("count", at::zeros({}));
  module.define(R"(
def forward(self, x):
  if self.training:
    self.count = self.count + 1
    return x * self.w + self.b
  else:
    return x * self.w
)");
  return MakeReplica(module, Config());
}

TEST(TorchScriptReplicaTest, UsesTheModeOfEachCall) {
  const std::unique_ptr<Replica> replica = Affine();
  const at::Tensor x = at::full({1, 2}, 2.0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal((*replica->Forward({x}, Mode::kTrain))[0], at::full({1, 2}, 7.0)));
    EXPECT_TRUE(at::equal((*replica->Forward({x}, Mode::kEval))[0], at::full({1, 2}, 6.0)));
  }
}

TEST(TorchScriptReplicaTest, ForwardNeverRecordsAGraph) {
  const std::unique_ptr<Replica> replica = Affine();
  const c10::AutoGradMode grad(true);
  EXPECT_FALSE((*replica->Forward({at::ones({1, 2})}, Mode::kTrain))[0].requires_grad());
}

TEST(TorchScriptReplicaTest, BackwardReturnsParameterGradients) {
  const std::unique_ptr<Replica> replica = Affine();
  const at::Tensor x = at::arange(6, at::kFloat).view({3, 2});
  const c10::AutoGradMode no_grad(false);  // as on a worker that serves requests
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors outputs, replica->ForwardForTraining({x}, Mode::kTrain));
  EXPECT_FALSE(outputs[0].requires_grad());
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients,
                             replica->Backward({at::ones({3, 2})}, nullptr));
  ASSERT_EQ(gradients.parameters.size(), 2);
  EXPECT_TRUE(at::equal(gradients.parameters[0], x.sum(0)));
  EXPECT_TRUE(at::equal(gradients.parameters[1], at::full({2}, 3.0)));
  ASSERT_EQ(gradients.inputs.size(), 1);
  EXPECT_FALSE(gradients.inputs[0].defined());  // does not require a gradient
}

TEST(TorchScriptReplicaTest, UnreachedParameterHasNoGradient) {
  const std::unique_ptr<Replica> replica = Affine();
  ASSERT_THAT(replica->ForwardForTraining({at::ones({3, 2})}, Mode::kEval), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients,
                             replica->Backward({at::ones({3, 2})}, nullptr));
  EXPECT_TRUE(gradients.parameters[0].defined());
  EXPECT_FALSE(gradients.parameters[1].defined());
}

TEST(TorchScriptReplicaTest, NoOutputGradientGivesNoGradients) {
  const std::unique_ptr<Replica> replica = Affine();
  ASSERT_THAT(replica->ForwardForTraining({at::ones({3, 2})}, Mode::kTrain), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients, replica->Backward({at::Tensor()}, nullptr));
  ASSERT_EQ(gradients.parameters.size(), 2);
  EXPECT_FALSE(gradients.parameters[0].defined() || gradients.parameters[1].defined());
}

TEST(TorchScriptReplicaTest, BoundParameterUsesGivenStorage) {
  const std::unique_ptr<Replica> replica = Affine();
  const at::Tensor storage = at::full({2}, 3.0);
  replica->BindParameter(0, storage);
  storage.fill_(10);
  EXPECT_TRUE(
      at::equal((*replica->Forward({at::ones({1, 2})}, Mode::kEval))[0], at::full({1, 2}, 10.0)));
  ASSERT_THAT(replica->ForwardForTraining({at::ones({1, 2})}, Mode::kEval), IsOk());
  EXPECT_TRUE(replica->Backward({at::ones({1, 2})}, nullptr)->parameters[0].defined());
}

TEST(TorchScriptReplicaTest, ReturnsGradientsOfInputsThatRequireThem) {
  const std::unique_ptr<Replica> replica = Affine();
  const at::Tensor x = at::ones({1, 2}).requires_grad_(true);
  ASSERT_THAT(replica->ForwardForTraining({x}, Mode::kTrain), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients,
                             replica->Backward({at::ones({1, 2})}, nullptr));
  EXPECT_TRUE(at::equal(gradients.inputs[0], at::full({1, 2}, 3.0)));
}

TEST(TorchScriptReplicaTest, FrozenParameterHasNoGradient) {
  const std::unique_ptr<Replica> replica = Affine();
  replica->Freeze(0);
  ASSERT_THAT(replica->ForwardForTraining({at::ones({1, 2})}, Mode::kTrain), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients,
                             replica->Backward({at::ones({1, 2})}, nullptr));
  EXPECT_FALSE(gradients.parameters[0].defined());
  EXPECT_TRUE(gradients.parameters[1].defined());
}

// y = tanh(x · first) · second · tied · tied, with tied weights; `unused` and `frozen` get no
// gradient.
TEST(TorchScriptReplicaTest, CallsOnGradientOncePerParameter) {
  torch::jit::Module module = NewModule();
  for (const char* name : {"first", "second", "tied", "unused"}) {
    module.register_parameter(name, Trainable(3), /*is_buffer=*/false);
  }
  module.register_parameter("again", module.attr("tied").toTensor(), /*is_buffer=*/false);
  module.register_parameter("frozen", at::ones({2}), /*is_buffer=*/false);
  module.define(R"(
def forward(self, x):
  return torch.tanh(x * self.first) * self.second * self.tied * self.again * self.frozen
)");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  std::vector<size_t> order;
  Tensors told(4);
  const Replica::OnGradient listen = [&](size_t p, const at::Tensor& gradient) {
    order.push_back(p);
    told[p] = gradient.clone();
  };
  for (int i = 0; i < 2; ++i) {
    order.clear();
    ASSERT_THAT(replica->ForwardForTraining({at::full({3, 2}, 0.1)}, Mode::kTrain), IsOk());
    BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients,
                               replica->Backward({at::ones({3, 2})}, listen));
    EXPECT_THAT(order, ElementsAre(2, 1, 0));
    for (size_t p = 0; p < 3; ++p) {
      EXPECT_TRUE(at::equal(told[p], gradients.parameters[p])) << p;
    }
    EXPECT_FALSE(gradients.parameters[3].defined());
  }
  // Without a callback.
  order.clear();
  ASSERT_THAT(replica->ForwardForTraining({at::ones({3, 2})}, Mode::kTrain), IsOk());
  ASSERT_THAT(replica->Backward({at::ones({3, 2})}, nullptr), IsOk());
  EXPECT_THAT(order, ElementsAre());
}

TEST(TorchScriptReplicaTest, ReturnsCurrentBuffers) {
  const std::unique_ptr<Replica> replica = Affine();
  ASSERT_EQ(replica->buffers().size(), 1);
  ASSERT_THAT(replica->Forward({at::ones({1, 2})}, Mode::kTrain), IsOk());
  EXPECT_EQ(replica->buffers()[0].item<float>(), 1);  // the forward pass assigned another tensor
}

TEST(TorchScriptReplicaTest, SetBuffersCopiesValues) {
  const std::unique_ptr<Replica> replica = Affine();
  ASSERT_THAT(replica->Forward({at::ones({1, 2})}, Mode::kTrain), IsOk());
  const at::Tensor five = at::full({}, 5.0);
  replica->SetBuffers({five});
  five.fill_(9);
  EXPECT_EQ(replica->buffers()[0].item<float>(), 5);
}

// The pending graph still has the old value of the buffer.
TEST(TorchScriptReplicaTest, SettingCurrentBuffersKeepsThePendingGraph) {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", Trainable(3), /*is_buffer=*/false);
  module.register_buffer("scale", at::full({2}, 2.0));
  module.define("def forward(self, x):\n  return x * self.w * self.scale\n");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  ASSERT_THAT(replica->ForwardForTraining({at::ones({1, 2})}, Mode::kTrain), IsOk());
  replica->SetBuffers({at::full({2}, 2.0)});
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients,
                             replica->Backward({at::ones({1, 2})}, nullptr));
  EXPECT_TRUE(at::equal(gradients.parameters[0], at::full({2}, 2.0)));
}

// The input's memory belongs to the request, which has ended by then.
TEST(TorchScriptReplicaTest, StatefulModelDoesNotKeepRequestMemory) {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", Trainable(1), /*is_buffer=*/false);
  const auto optional = c10::OptionalType::create(c10::TensorType::get());
  module.register_attribute("last", optional, c10::IValue());
  module.register_attribute("all", c10::ListType::ofTensors(), c10::List<at::Tensor>());
  module.define(R"(
def forward(self, x):
  last = self.last
  self.last = x
  self.all.append(x)
  y = torch.zeros_like(x) if last is None else last
  return y * self.w + torch.stack(self.all).sum(0)
)");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  std::vector<float> memory = {1, 2};
  const at::Tensor x = at::from_blob(memory.data(), {1, 2});
  ASSERT_THAT(replica->Forward({x}, Mode::kEval), IsOk());
  memory = {30, 30};
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors second, replica->Forward({x}, Mode::kEval));
  EXPECT_TRUE(at::equal(second[0], at::tensor({32.0f, 34.0f}).view({1, 2})));
}

TEST(TorchScriptReplicaTest, StatefulModelDoesNotChangeEarlierOutputs) {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", Trainable(2), /*is_buffer=*/false);
  module.register_buffer("place", at::zeros({4, 2}));
  module.define(R"(
def forward(self, x):
  place = self.place[:x.size(0)]
  torch.mul(x, self.w, out=place)
  return place
)");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors first,
                             replica->Forward({at::ones({3, 2})}, Mode::kEval));
  ASSERT_THAT(replica->Forward({at::zeros({3, 2})}, Mode::kEval), IsOk());
  EXPECT_TRUE(at::equal(first[0], at::full({3, 2}, 2.0)));
}

// A module with a child, a frozen parameter and tied weights.
torch::jit::Module Family() {
  torch::jit::Module child("Child");
  child.register_attribute("training", c10::BoolType::get(), true);
  child.register_parameter("w", Trainable(1), false);
  child.register_buffer("mean", at::zeros({2}));
  child.define("def forward(self, x):\n  return x * self.w\n");
  torch::jit::Module module = NewModule();
  module.register_module("child", child);
  const at::Tensor tied = Trainable(2);
  module.register_parameter("a", tied, false);
  module.register_parameter("b", tied, false);
  module.register_parameter("frozen", at::ones({2}), false);
  module.define(
      "def forward(self, x):\n  return self.child.forward(x) * self.a * self.b * self.frozen\n");
  return module;
}

std::vector<std::string> ParameterNames(const Replica& replica) {
  std::vector<std::string> names;
  for (const Parameter& parameter : replica.parameters()) {
    names.push_back(parameter.name);
  }
  return names;
}

TEST(TorchScriptReplicaTest, ListsTiedParametersOnce) {
  const std::unique_ptr<Replica> replica = MakeReplica(Family(), Config());
  EXPECT_THAT(ParameterNames(*replica), ElementsAre("a", "child.w"));
}

TEST(TorchScriptReplicaTest, StateMatchesStateDict) {
  const std::unique_ptr<Replica> replica = MakeReplica(Family(), Config());
  std::vector<std::pair<std::string, bool>> entries;
  for (const StateEntry& entry : replica->state()) {
    entries.emplace_back(entry.name, entry.is_parameter);
    EXPECT_FALSE(entry.value.requires_grad());
  }
  EXPECT_THAT(entries, ElementsAre(Pair("a", true), Pair("b", true), Pair("frozen", true),
                                   Pair("child.w", true), Pair("child.mean", false)));
}

TEST(CloneStageTest, CopySharesParametersUntilTheyAreBound) {
  const std::unique_ptr<Replica> replica = MakeReplica(Family(), Config());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto clone, replica->CloneStage(StageRole(), c10::kCPU));
  EXPECT_EQ(ParameterNames(*clone), ParameterNames(*replica));  // keeps ties and frozen parameters
  const std::vector<StateEntry> state = replica->state();
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(clone->state()[i].value.is_alias_of(state[i].value), state[i].is_parameter);
  }
  const at::Tensor x = at::ones({1, 2});
  EXPECT_TRUE(at::equal((*clone->Forward({x}, Mode::kEval))[0], at::full({1, 2}, 4.0)));
  const at::Tensor storage = at::full({2}, 5.0);
  replica->BindParameter(1, storage);
  replica->buffers()[0].fill_(9);
  EXPECT_TRUE(at::equal((*clone->Forward({x}, Mode::kEval))[0], at::full({1, 2}, 4.0)));
  EXPECT_EQ(clone->buffers()[0].sum().item<float>(), 0);
  ASSERT_THAT(clone->ForwardForTraining({x}, Mode::kTrain), IsOk());
  EXPECT_TRUE(clone->Backward({at::ones({1, 2})}, nullptr)->parameters[1].defined());
}

TEST(TorchScriptReplicaTest, MatchesInputsAndOutputsByPosition) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, a, b):\n  return a - b, b\n");
  ModelConfig config;
  config.inputs = {{"b", DataType::kFp32, {}}, {"a", DataType::kFp32, {}}};
  config.outputs = {{"y__1", DataType::kFp32, {}}, {"y__0", DataType::kFp32, {}}};
  const std::unique_ptr<Replica> replica = MakeReplica(module, config);
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Tensors outputs,
      replica->Forward({at::full({1}, 2.0), at::full({1}, 5.0)}, Mode::kEval));
  EXPECT_EQ(outputs[0].item<float>(), 2);
  EXPECT_EQ(outputs[1].item<float>(), 3);
}

TEST(TorchScriptReplicaTest, RejectsOutputOfWrongDatatype) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, x):\n  return x.double()\n");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  EXPECT_THAT(replica->Forward({at::ones({1})}, Mode::kEval),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'y'")));
}

// Creates a module whose forward() runs `line` and then computes x · w.
absl::Status CheckTrainable(const std::string& line) {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", Trainable(3), /*is_buffer=*/false);
  module.register_buffer("count", at::zeros({}));
  module.register_attribute("n", c10::IntType::get(), 0);
  module.define("def forward(self, x):\n  " + line + "\n  return x * self.w\n");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  EXPECT_THAT(replica->Forward({at::ones({1, 2})}, Mode::kEval), IsOk());
  return replica->CheckTrainable(std::nullopt);
}

TEST(CheckTrainableTest, AcceptsOnlyChangesOfBuffers) {
  EXPECT_THAT(CheckTrainable("self.count = self.count + 1"), IsOk());
  EXPECT_THAT(CheckTrainable("self.count.add_(self.n)"), IsOk());
  EXPECT_THAT(CheckTrainable("x.add_(1)"), IsOk());
  EXPECT_THAT(CheckTrainable("self.n += 1"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("assigns 'n', which is not a buffer"),
                             HasSubstr("registered with register_buffer()"))));
  EXPECT_THAT(CheckTrainable("self.w.detach().mul_(0.9)"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("changes in place (aten::mul_) 'w', a parameter"),
                             HasSubstr("only the optimizer may change"))));
  // The search continues after an allowed change of a buffer.
  EXPECT_THAT(CheckTrainable("self.count.add_(1)\n  self.n = 0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("assigns 'n'")));
}

struct TextSink final : ByteSink {
  absl::Status Write(absl::string_view bytes) override {
    text.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  std::string text;
};

TEST(TorchScriptReplicaTest, WritesFileWithCurrentWeights) {
  const std::unique_ptr<Replica> replica = Affine();
  replica->BindParameter(0, at::full({2}, 7.0));
  const std::vector<NewFile> files = replica->Files();
  ASSERT_EQ(files.size(), 1);
  EXPECT_EQ(files[0].name, "model.pt");
  TextSink sink;
  ASSERT_THAT(files[0].write(&sink), IsOk());
  std::stringstream file(sink.text);
  torch::jit::Module loaded = torch::jit::load(file);
  EXPECT_TRUE(
      at::equal(loaded.forward({at::ones({1, 2})}).toTensor().detach(), at::full({1, 2}, 7.0)));
}

TEST(TorchScriptReplicaTest, ReturnsWriteErrors) {
  struct FullDisk final : ByteSink {
    absl::Status Write(absl::string_view) override {
      return absl::ResourceExhaustedError("the disk is full");
    }
  };
  FullDisk disk;
  EXPECT_THAT(Affine()->Files()[0].write(&disk),
              StatusIs(absl::StatusCode::kResourceExhausted, StrEq("the disk is full")));
}

TEST(TorchScriptReplicaTest, SkipsNoneInResults) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, x):\n  return None, x * 2, None\n");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors outputs,
                             replica->Forward({at::ones({1, 2})}, Mode::kEval));
  ASSERT_EQ(outputs.size(), 1);
  EXPECT_TRUE(at::equal(outputs[0], at::full({1, 2}, 2.0)));
}

// Module with two submodules: x → (x · w, x) → the product of both.
torch::jit::Module InParts() {
  torch::jit::Module first("First");
  first.register_attribute("training", c10::BoolType::get(), true);
  first.register_parameter("w", Trainable(3), false);
  first.define("def forward(self, x):\n  return x * self.w, x\n");
  torch::jit::Module second("Second");
  second.register_attribute("training", c10::BoolType::get(), true);
  second.register_parameter("v", Trainable(2), false);
  second.define("def forward(self, a, b):\n  return a * b * self.v\n");
  torch::jit::Module parts("Parts");
  parts.register_attribute("training", c10::BoolType::get(), true);
  parts.register_module("second", second);
  parts.define("def helper(self, x):\n  return x\n");
  torch::jit::Module module = NewModule();
  module.register_module("first", first);
  module.register_module("parts", parts);
  module.define(R"(
def forward(self, x):
  a, b = self.first.forward(x)
  return self.parts.second.forward(a, b)
)");
  return module;
}

TEST(CloneStageTest, StagesPassTensorsInOrder) {
  const std::unique_ptr<Replica> replica = MakeReplica(InParts(), Config());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto first,
                             replica->CloneStage({.path = "first", .last = false}, c10::kCPU));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto second, replica->CloneStage({.path = "parts.second", .first = false}, c10::kCPU));
  EXPECT_THAT(ParameterNames(*first), ElementsAre("w"));
  EXPECT_THAT(ParameterNames(*second), ElementsAre("v"));
  const at::Tensor x = at::full({1, 2}, 5.0);
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors between, first->Forward({x}, Mode::kTrain));
  ASSERT_EQ(between.size(), 2);
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors outputs, second->Forward(between, Mode::kTrain));
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors whole, replica->Forward({x}, Mode::kTrain));
  EXPECT_TRUE(at::equal(outputs[0], whole[0]));
  first->BindParameter(0, at::zeros({2}));  // changes only the copy
  EXPECT_TRUE(at::equal((*replica->Forward({x}, Mode::kTrain))[0], whole[0]));
}

TEST(CloneStageTest, EvalModulesStayInEvaluationModeInTraining) {
  torch::jit::Module module = NewModule();
  for (const char* name : {"first", "second"}) {
    torch::jit::Module inner = NewModule();
    inner.define("def forward(self, x):\n  return x * 2 if self.training else x\n");
    torch::jit::Module part = NewModule();
    part.register_module("inner", inner);
    part.define("def forward(self, x):\n  return self.inner.forward(x)\n");
    module.register_module(name, part);
  }
  module.define("def forward(self, x):\n  return self.second.forward(self.first.forward(x))\n");
  const std::unique_ptr<Replica> replica = MakeReplica(module, Config());
  EXPECT_THAT(replica->modules(), ElementsAre("first", "first.inner", "second", "second.inner"));
  const auto trained = [&](const StageRole& role) {
    const auto stage = replica->CloneStage(role, c10::kCPU);
    EXPECT_THAT(stage, IsOk());
    // A pass in evaluation mode in between does not change the modes.
    EXPECT_THAT((*stage)->Forward({at::ones({1, 2})}, Mode::kEval), IsOk());
    const auto outputs = (*stage)->Forward({at::ones({1, 2})}, Mode::kTrain);
    EXPECT_THAT(outputs, IsOk());
    return (*outputs)[0].max().item<float>();
  };
  EXPECT_EQ(trained({}), 4);
  EXPECT_EQ(trained({.eval_modules = {"first", "first.inner"}}), 2);
  const std::vector<std::string> second = {"second", "second.inner"};
  EXPECT_EQ(trained({.path = "first", .last = false, .eval_modules = second}), 2);
  EXPECT_EQ(trained({.path = "second", .first = false, .eval_modules = second}), 1);
  EXPECT_EQ(trained({.path = "second.inner", .first = false, .eval_modules = second}), 1);
}

// Skipping None would shift the arguments of the next stage.
TEST(CloneStageTest, RejectsNoneBetweenStages) {
  torch::jit::Module module = NewModule();
  torch::jit::Module first = NewModule();
  first.define("def forward(self, x):\n  return None, x\n");
  module.register_module("first", first);
  module.define("def forward(self, x):\n  return self.first.forward(x)[1]\n");
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto stage,
      MakeReplica(module, Config())->CloneStage({.path = "first", .last = false}, c10::kCPU));
  EXPECT_THAT(stage->Forward({at::ones({1, 2})}, Mode::kTrain),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("returned None")));
}

TEST(CloneStageTest, RejectsUnknownSubmodule) {
  const std::unique_ptr<Replica> replica = MakeReplica(InParts(), Config());
  EXPECT_THAT(replica->CloneStage({.path = "third"}, c10::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'third'"), HasSubstr("'first', 'parts'"))));
  EXPECT_THAT(replica->CloneStage({.path = "parts"}, c10::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no forward")));
  // The model's input is x.
  EXPECT_FALSE(replica->CloneStage({.path = "parts.second"}, c10::kCPU).ok());
}

}  // namespace
}  // namespace braid
