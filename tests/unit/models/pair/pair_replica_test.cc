#include "server/models/pair/pair_replica.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/autocast.h"
#include "server/models/pair/pair_model.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Tensors = std::vector<at::Tensor>;

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

std::string PathOf(const char* model) {
  return std::string(BRAID_TEST_PAIRS) + "/" + model + "/1/model.pt2";
}

std::unique_ptr<Replica> Open(const char* name, std::optional<ModelConfig> config = std::nullopt) {
  absl::StatusOr<std::unique_ptr<Model>> model =
      OpenPair(PathOf(name), name, std::move(config), c10::kCPU);
  EXPECT_THAT(model, IsOk());
  absl::StatusOr<std::unique_ptr<Replica>> replica = (*model)->MakeReplica(c10::kCPU);
  EXPECT_THAT(replica, IsOk());
  return *std::move(replica);
}

std::unique_ptr<Replica> CopyOf(const Replica& replica) {
  return *replica.CloneStage(StageRole(), c10::kCPU);
}

// The package outlives the replica that opened it.
std::unique_ptr<Replica> OpenToTrain(const char* name) { return CopyOf(*Open(name)); }

at::Tensor Rows(int64_t rows, int64_t columns = 3) {
  return at::arange(rows * columns, at::kDouble).reshape({rows, columns}).sin();
}

at::Tensor ValueOf(const Replica& replica, const std::string& name) {
  for (const StateEntry& entry : replica.state()) {
    if (entry.name == name) {
      return entry.value;
    }
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}

std::vector<std::string> NamesOf(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) {
    names.push_back(parameter.name);
  }
  return names;
}

// Computes autograd's gradients of the head `left` for the weights of body and left.
Tensors GradientsOfLeft(const Replica& replica, const at::Tensor& x) {
  const at::Tensor body = ValueOf(replica, "body.weight").clone().set_requires_grad(true);
  const at::Tensor left = ValueOf(replica, "left.weight").clone().set_requires_grad(true);
  const at::Tensor y = x.matmul(body.t()).matmul(left.t());
  return torch::autograd::grad({y}, {body, left}, {at::ones_like(y)});
}

TEST(PairReplicaTest, RunsWithThePackagesWeights) {
  const std::unique_ptr<Replica> replica = Open("heads");
  const at::Tensor x = Rows(5);
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors outputs, replica->Forward({x}, Mode::kEval));
  ASSERT_THAT(outputs, SizeIs(2));
  const at::Tensor hidden = x.matmul(ValueOf(*replica, "body.weight").t());
  for (size_t o = 0; o < 2; ++o) {
    const std::string head = o == 0 ? "left" : "right";
    EXPECT_TRUE(at::allclose(outputs[o], hidden.matmul(ValueOf(*replica, head + ".weight").t()) +
                                             ValueOf(*replica, head + ".bias")));
    EXPECT_FALSE(outputs[o].is_inference());
  }
}

TEST(PairReplicaTest, SelectsAndOrdersConfiguredOutputs) {
  ModelConfig config;
  config.max_batch_size = 8;
  config.inputs = {{"x", DataType::kFp64, {3}}};
  config.outputs = {{"right", DataType::kFp64, {-1}}};
  const std::unique_ptr<Replica> both = Open("heads");
  const std::unique_ptr<Replica> right = Open("heads", config);
  const Tensors outputs = *right->Forward({Rows(2)}, Mode::kEval);
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_TRUE(at::equal(outputs[0], (*both->Forward({Rows(2)}, Mode::kEval))[1]));
}

TEST(PairReplicaTest, ListsParametersThatAreNotFrozen) {
  const std::unique_ptr<Replica> replica = OpenToTrain("heads");
  EXPECT_THAT(NamesOf(replica->parameters()),
              ElementsAre("body.weight", "left.weight", "right.weight", "right.bias"));
  EXPECT_THAT(replica->state(), SizeIs(5));
}

TEST(PairReplicaTest, GradientsMatchAutograd) {
  const std::unique_ptr<Replica> replica = OpenToTrain("heads");
  const at::Tensor x = Rows(5);
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors outputs, replica->ForwardForTraining({x}, Mode::kTrain));
  std::vector<size_t> told;
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Gradients gradients,
      replica->Backward({at::ones_like(outputs[0]), {}},
                        [&](size_t p, const at::Tensor&) { told.push_back(p); }));
  const Tensors expected = GradientsOfLeft(*replica, x);
  EXPECT_TRUE(at::allclose(gradients.parameters[0], expected[0]));
  EXPECT_TRUE(at::allclose(gradients.parameters[1], expected[1]));
  EXPECT_FALSE(gradients.parameters[2].defined());
  EXPECT_FALSE(gradients.parameters[3].defined());
  EXPECT_THAT(told, UnorderedElementsAre(0, 1));
}

TEST(PairReplicaTest, NoOutputGradientGivesNoGradients) {
  const std::unique_ptr<Replica> replica = OpenToTrain("heads");
  ASSERT_THAT(replica->ForwardForTraining({Rows(5)}, Mode::kTrain), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Gradients gradients, replica->Backward({{}, {}}, nullptr));
  for (const at::Tensor& gradient : gradients.parameters) {
    EXPECT_FALSE(gradient.defined());
  }
}

TEST(PairReplicaTest, FrozenParameterHasNoGradient) {
  const std::unique_ptr<Replica> replica = OpenToTrain("heads");
  replica->Freeze(0);
  const std::unique_ptr<Replica> clone = CopyOf(*replica);
  EXPECT_FALSE(clone->parameters()[0].value.requires_grad());
  const Tensors outputs = *clone->ForwardForTraining({Rows(5)}, Mode::kTrain);
  const Gradients gradients = *clone->Backward({at::ones_like(outputs[0]), {}}, nullptr);
  EXPECT_FALSE(gradients.parameters[0].defined());
  EXPECT_TRUE(gradients.parameters[1].defined());
}

TEST(PairReplicaTest, RunsWithBoundStorage) {
  const std::unique_ptr<Replica> replica = OpenToTrain("heads");
  const at::Tensor storage = at::zeros({2, 3}, at::kDouble);
  replica->BindParameter(0, storage);
  const at::Tensor bias = ValueOf(*replica, "left.bias");
  EXPECT_TRUE(at::equal((*replica->Forward({Rows(2)}, Mode::kEval))[0], bias.expand({2, 1})));
  storage.fill_(1);
  EXPECT_TRUE(at::equal(ValueOf(*replica, "body.weight"), storage));
}

TEST(PairReplicaTest, CopySharesParametersUntilTheyAreBound) {
  const std::unique_ptr<Replica> replica = Open("stages");
  const at::Tensor before = (*replica->Forward({Rows(2)}, Mode::kEval))[0].clone();
  const std::unique_ptr<Replica> copy = CopyOf(*replica);
  const std::vector<StateEntry> state = copy->state();
  for (size_t i = 0; i < state.size(); ++i) {
    const bool shared = state[i].value.is_alias_of(replica->state()[i].value);
    EXPECT_EQ(shared, state[i].is_parameter) << state[i].name;
    if (state[i].is_parameter) {
      copy->BindEntry(i, at::full_like(state[i].value, 7));
      EXPECT_EQ(copy->state()[i].value.max().item<double>(), 7);
    } else {
      state[i].value.fill_(7);
    }
  }
  EXPECT_TRUE(at::equal((*replica->Forward({Rows(2)}, Mode::kEval))[0], before));
  EXPECT_FALSE(at::equal((*copy->Forward({Rows(2)}, Mode::kEval))[0], before));
}

TEST(PairReplicaTest, SumsGradientsOfTiedWeights) {
  const std::unique_ptr<Replica> replica = OpenToTrain("tied");
  EXPECT_THAT(NamesOf(replica->parameters()), ElementsAre("encode.weight"));
  ASSERT_THAT(replica->state(), SizeIs(2));
  const at::Tensor x = Rows(4);
  const Tensors outputs = *replica->ForwardForTraining({x}, Mode::kTrain);
  const Gradients gradients = *replica->Backward({at::ones_like(outputs[0])}, nullptr);
  const at::Tensor weight = ValueOf(*replica, "decode.weight").clone().set_requires_grad(true);
  const at::Tensor y = x.matmul(weight.t()).tanh().matmul(weight.t());
  EXPECT_TRUE(at::allclose(gradients.parameters[0],
                           torch::autograd::grad({y}, {weight}, {at::ones_like(y)})[0]));
}

TEST(PairReplicaTest, TrainingReplacesBufferTensors) {
  const std::unique_ptr<Replica> replica = OpenToTrain("stages");
  const Tensors before = replica->buffers();
  const at::Tensor mean = before[0].clone();
  ASSERT_THAT(replica->ForwardForTraining({Rows(6)}, Mode::kTrain), IsOk());
  EXPECT_TRUE(at::equal(before[0], mean));
  EXPECT_FALSE(at::equal(replica->buffers()[0], mean));
  EXPECT_EQ(replica->buffers()[2].item<int64_t>(), 1);  // num_batches_tracked
  replica->SetBuffers(before);
  EXPECT_TRUE(at::equal(replica->buffers()[0], mean));
}

TEST(PairReplicaTest, SettingBuffersDoesNotChangePendingGradient) {
  const std::unique_ptr<Replica> replica = OpenToTrain("stages");
  const std::unique_ptr<Replica> other = CopyOf(*replica);
  const Tensors outputs = *replica->ForwardForTraining({Rows(6)}, Mode::kTrain);
  ASSERT_THAT(other->ForwardForTraining({Rows(6)}, Mode::kTrain), IsOk());
  other->SetBuffers({at::full({4}, 9.0, at::kDouble), at::full({4}, 9.0, at::kDouble),
                     at::full({}, 9, at::kLong)});
  const at::Tensor ones = at::ones_like(outputs[0]);
  const Gradients wanted = *replica->Backward({ones}, nullptr);
  const Gradients got = *other->Backward({ones}, nullptr);
  for (size_t p = 0; p < wanted.parameters.size(); ++p) {
    EXPECT_TRUE(at::equal(wanted.parameters[p], got.parameters[p]));
  }
}

TEST(PairReplicaTest, RejectsOneRowForBatchNormInTraining) {
  const std::unique_ptr<Replica> replica = OpenToTrain("stages");
  EXPECT_THAT(replica->ForwardForTraining({Rows(1)}, Mode::kTrain),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("more than 1 value per channel")));
  EXPECT_THAT(replica->Forward({Rows(1)}, Mode::kEval), IsOk());
}

TEST(PairReplicaTest, StagesComputeTheSameAsTheModel) {
  const std::unique_ptr<Replica> whole = OpenToTrain("stages");
  EXPECT_THAT(whole->CheckStages({"first", "second"}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Replica> first,
      whole->CloneStage({.path = "first", .first = true, .last = false}, c10::kCPU));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Replica> second,
      whole->CloneStage({.path = "second", .first = false, .last = true}, c10::kCPU));
  EXPECT_THAT(NamesOf(second->parameters()), ElementsAre("weight", "bias"));
  EXPECT_THAT(NamesOf(first->parameters()),
              ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));

  const at::Tensor x = Rows(6);
  const Tensors outputs = *whole->ForwardForTraining({x}, Mode::kTrain);
  const at::Tensor middle = (*first->ForwardForTraining({x}, Mode::kTrain))[0].detach();
  middle.set_requires_grad(true);
  const Tensors last = *second->ForwardForTraining({middle}, Mode::kTrain);
  EXPECT_TRUE(at::equal(last[0], outputs[0]));

  const at::Tensor ones = at::ones_like(outputs[0]);
  const Gradients wanted = *whole->Backward({ones}, nullptr);
  const Gradients of_second = *second->Backward({ones}, nullptr);
  ASSERT_TRUE(of_second.inputs[0].defined());
  const Gradients of_first = *first->Backward({of_second.inputs[0]}, nullptr);
  EXPECT_TRUE(at::allclose(of_first.parameters[0], wanted.parameters[0]));
  EXPECT_TRUE(at::allclose(of_second.parameters[0], wanted.parameters[4]));
}

TEST(PairReplicaTest, RejectsStagesThatWereNotExported) {
  const std::unique_ptr<Replica> replica = Open("stages");
  EXPECT_THAT(replica->CloneStage({.path = "third"}, c10::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'third'")));
  EXPECT_THAT(replica->CheckStages({"second", "first"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("[first, second]"), HasSubstr("not [second, first]"))));
}

TEST(PairReplicaTest, SelectsTheGraphOfThePrecision) {
  const std::unique_ptr<Replica> replica = OpenToTrain("single");
  EXPECT_THAT(replica->CheckTrainable(c10::kBFloat16), IsOk());
  EXPECT_THAT(replica->CheckTrainable(c10::kHalf),
              StatusIs(kRefused, HasSubstr("precisions=[\"float16\"]")));
  const AutocastGuard autocast(c10::kCPU, c10::kBFloat16);
  const Tensors outputs = *replica->ForwardForTraining({Rows(4).to(at::kFloat)}, Mode::kTrain);
  EXPECT_EQ(outputs[0].scalar_type(), c10::kBFloat16);
  const Gradients gradients = *replica->Backward({at::ones_like(outputs[0]), {}}, nullptr);
  EXPECT_EQ(gradients.parameters[0].scalar_type(), c10::kFloat);
}

TEST(PairReplicaTest, RejectsTrainingInEvaluationMode) {
  EXPECT_THAT(OpenToTrain("heads")->ForwardForTraining({Rows(4)}, Mode::kEval),
              StatusIs(kRefused, HasSubstr("evaluation")));
}

TEST(PairReplicaTest, WritesPackageAndWeights) {
  const std::unique_ptr<Replica> replica = OpenToTrain("tied");
  const std::vector<NewFile> files = replica->Files();
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_EQ(files[0].name, "model.pt2");
  EXPECT_EQ(files[1].name, "model.safetensors");
}

TEST(PairModelTest, RejectsConfigurationThatDoesNotMatch) {
  ModelConfig config;
  config.max_batch_size = 8;
  config.inputs = {{"x", DataType::kFp64, {3}}};
  config.outputs = {{"left", DataType::kFp64, {1}}};
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", config, c10::kCPU), IsOk());

  ModelConfig wrong = config;
  wrong.inputs[0].dims = {4};
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", wrong, c10::kCPU),
              StatusIs(kRefused, AllOf(HasSubstr("'x'"), HasSubstr("FP64[-1, 3]"))));
  wrong.inputs[0].dims = {-1};  // clients may send any size
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", wrong, c10::kCPU),
              StatusIs(kRefused, AllOf(HasSubstr("'x' is configured as FP64[rows, -1]"),
                                       HasSubstr("FP64[-1, 3]"))));
  wrong = config;
  wrong.inputs[0].type = DataType::kFp32;
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", wrong, c10::kCPU),
              StatusIs(kRefused, HasSubstr("FP32")));
  wrong = config;
  wrong.max_batch_size = 0;
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", wrong, c10::kCPU),
              StatusIs(kRefused, HasSubstr("'x'")));
  wrong = config;
  wrong.inputs.push_back({"y", DataType::kFp64, {3}});
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", wrong, c10::kCPU),
              StatusIs(kRefused, HasSubstr("unknown input 'y'")));
  wrong = config;
  wrong.outputs[0].type = DataType::kFp32;
  EXPECT_THAT(OpenPair(PathOf("heads"), "heads", wrong, c10::kCPU),
              StatusIs(kRefused, HasSubstr("'left'")));
}

TEST(PairModelTest, DerivesConfigurationFromThePackage) {
  const auto model = OpenPair(PathOf("stages"), "stages", std::nullopt, c10::kCPU);
  ASSERT_THAT(model, IsOk());
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.inputs[0].name, "x");
  EXPECT_EQ(config.inputs[0].type, DataType::kFp64);
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(3));
  EXPECT_THAT(config.outputs[0].dims, ElementsAre(2));
  EXPECT_EQ(config.max_batch_size, kDefaultMaxBatchSize);
}

TEST(PairModelTest, UntrainedReplicasShareMemory) {
  const auto model = OpenPair(PathOf("heads"), "heads", std::nullopt, c10::kCPU);
  ASSERT_THAT(model, IsOk());
  const std::unique_ptr<Replica> one = *(*model)->MakeReplica(c10::kCPU);
  const std::unique_ptr<Replica> two = *(*model)->MakeReplica(c10::kCPU);
  EXPECT_EQ(ValueOf(*one, "body.weight").const_data_ptr(),
            ValueOf(*two, "body.weight").const_data_ptr());
}

}  // namespace
}  // namespace braid
