#include "server/rpc/training_messages.h"

#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

absl::StatusOr<TrainerSpec> Read(const std::string& text) {
  return ReadSpec(FromText<braid::v1::CreateTrainerRequest>(text));
}

TEST(ReadSpecTest, DefaultsAreTorchs) {
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerSpec spec,
                             Read("model: 'm' loss { name: 'mse' } optimizer { sgd { } }"));
  EXPECT_EQ(spec.name, "");
  EXPECT_EQ(spec.base_version, 0);
  EXPECT_EQ(spec.loss.reduction, Reduction::kMean);
  EXPECT_FALSE(spec.loss.ignore_index.has_value());
  EXPECT_EQ(std::get<SgdSpec>(spec.optimizer).lr, 1e-3);
  EXPECT_EQ(std::get<SgdSpec>(spec.optimizer).momentum, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerSpec other, Read("optimizer { adamw { } }"));
  const auto& adamw = std::get<AdamWSpec>(other.optimizer);
  EXPECT_EQ(adamw.lr, 1e-3);
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_EQ(adamw.beta2, 0.999);
  EXPECT_EQ(adamw.eps, 1e-8);
  EXPECT_EQ(adamw.weight_decay, 1e-2);
}

TEST(ReadSpecTest, AnExplicitZeroIsNoDefault) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const TrainerSpec spec,
      Read("loss { ignore_index: 0 } optimizer { adamw { lr: 0 beta1: 0 weight_decay: 0 } }"));
  EXPECT_EQ(spec.loss.ignore_index, 0);
  const auto& adamw = std::get<AdamWSpec>(spec.optimizer);
  EXPECT_EQ(adamw.lr, 0);
  EXPECT_EQ(adamw.beta1, 0);
  EXPECT_EQ(adamw.weight_decay, 0);
}

TEST(ReadSpecTest, ReadsEveryField) {
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerSpec spec, Read(R"(
    model: 'm' version: 3 name: 't' request_id: 'r'
    loss { name: 'cross_entropy' output: 'y' target: 'z' reduction: REDUCTION_SUM
           ignore_index: 7 label_smoothing: 0.1 }
    optimizer { sgd { lr: 1 momentum: 2 dampening: 3 weight_decay: 4 nesterov: true } })"));
  EXPECT_EQ(spec.model, "m");
  EXPECT_EQ(spec.base_version, 3);
  EXPECT_EQ(spec.name, "t");
  EXPECT_EQ(spec.request_id, "r");
  EXPECT_EQ(spec.loss.name, "cross_entropy");
  EXPECT_EQ(spec.loss.output, "y");
  EXPECT_EQ(spec.loss.target, "z");
  EXPECT_EQ(spec.loss.reduction, Reduction::kSum);
  EXPECT_EQ(spec.loss.ignore_index, 7);
  EXPECT_EQ(spec.loss.label_smoothing, 0.1);
  const auto& sgd = std::get<SgdSpec>(spec.optimizer);
  EXPECT_EQ(sgd.lr, 1);
  EXPECT_EQ(sgd.momentum, 2);
  EXPECT_EQ(sgd.dampening, 3);
  EXPECT_EQ(sgd.weight_decay, 4);
  EXPECT_TRUE(sgd.nesterov);
}

TEST(ReadSpecTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Read("optimizer { }"), RefusesField("optimizer", HasSubstr("sgd or adamw")));
  EXPECT_THAT(Read(""), RefusesField("optimizer", HasSubstr("is missing")));
  EXPECT_THAT(Read("version: -1"), RefusesField("version", HasSubstr("-1 is no version")));
  braid::v1::CreateTrainerRequest request;
  request.mutable_loss()->set_reduction(static_cast<braid::v1::Loss::Reduction>(9));
  EXPECT_THAT(ReadSpec(request), RefusesField("loss.reduction", HasSubstr("9 is unknown")));
}

TEST(ReadOperationTest, EachRequestIsItsKind) {
  constexpr char kBatch[] =
      "sequence: 7 inputs { name: 'x' datatype: 'UINT8' shape: 2 data: 'ab' }"
      "targets { name: 'y' datatype: 'UINT8' shape: 1 data: 'c' }";
  const std::string text = kBatch;
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Operation step,
      ReadOperation(FromText<braid::v1::StepRequest>(text + "hyper_parameters { lr: 0.5 }")));
  EXPECT_EQ(step.kind, OperationKind::kStep);
  EXPECT_EQ(step.sequence, 7);
  EXPECT_EQ(step.inputs[0].name, "x");
  EXPECT_EQ(step.targets[0].name, "y");
  EXPECT_EQ(step.hyper_parameters.lr, 0.5);
  EXPECT_FALSE(step.hyper_parameters.momentum.has_value());
  EXPECT_EQ(ReadOperation(FromText<braid::v1::ForwardBackwardRequest>(text))->kind,
            OperationKind::kForwardBackward);
  EXPECT_EQ(ReadOperation(FromText<braid::v1::ForwardRequest>(text))->mode, Mode::kTrain);
  EXPECT_EQ(ReadOperation(FromText<braid::v1::ForwardRequest>(text + "mode: MODE_EVAL"))->mode,
            Mode::kEval);
  BRAID_ASSERT_OK_AND_ASSIGN(const Operation update,
                             ReadOperation(FromText<braid::v1::OptimStepRequest>(
                                 "sequence: 8 hyper_parameters { momentum: 0 }")));
  EXPECT_EQ(update.kind, OperationKind::kOptimStep);
  EXPECT_EQ(update.hyper_parameters.momentum, 0);
  EXPECT_EQ(ReadOperation(FromText<braid::v1::PublishRequest>("sequence: 9"))->sequence, 9);
}

TEST(ReadOperationTest, WhatIsWrongIsNamed) {
  braid::v1::ForwardRequest forward;
  forward.set_mode(static_cast<braid::v1::ForwardRequest::Mode>(9));
  EXPECT_THAT(ReadOperation(forward), RefusesField("mode", HasSubstr("9 is unknown")));
  EXPECT_THAT(ReadOperation(FromText<braid::v1::StepRequest>("targets { datatype: 'x' }")),
              RefusesField("targets[0].datatype", HasSubstr("'x'")));
}

TEST(WriteTrainerTest, SaysWhatReadSpecRead) {
  const auto request = FromText<braid::v1::CreateTrainerRequest>(R"(
    model: 'm' name: 't'
    loss { name: 'mse' output: 'y' target: 'z' reduction: REDUCTION_SUM }
    optimizer { adamw { lr: 1 beta1: 0.5 beta2: 0.25 eps: 2 weight_decay: 3 } })");
  TrainerInfo info;
  info.spec = *ReadSpec(request);
  info.devices = {"cpu:0", "cpu:1"};
  info.step = 4;
  info.applied_sequence = 5;
  info.accumulated = 6;
  braid::v1::Trainer message;
  WriteTrainer(info, &message);
  EXPECT_EQ(message.loss().SerializeAsString(), request.loss().SerializeAsString());
  EXPECT_EQ(message.optimizer().SerializeAsString(), request.optimizer().SerializeAsString());
  EXPECT_THAT(message.devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(message.step(), 4);
  EXPECT_EQ(message.applied_sequence(), 5);
  EXPECT_EQ(message.accumulated(), 6);
}

TEST(WriteStatusTest, TellsTheSplitIfItIsAskedFor) {
  OperationResult result;
  result.applied_sequence = 3;
  result.step = 2;
  result.replayed = true;
  result.chunks = {{"cpu:0", 10}, {"cpu:1", 7}};
  braid::v1::OperationStatus with;
  WriteStatus(result, /*with_chunks=*/true, &with);
  EXPECT_EQ(with.applied_sequence(), 3);
  EXPECT_EQ(with.step(), 2);
  EXPECT_TRUE(with.replayed());
  ASSERT_EQ(with.chunks_size(), 2);
  EXPECT_EQ(with.chunks(1).device(), "cpu:1");
  EXPECT_EQ(with.chunks(1).rows(), 7);
  braid::v1::OperationStatus without;
  WriteStatus(result, /*with_chunks=*/false, &without);
  EXPECT_EQ(without.chunks_size(), 0);
}

}  // namespace
}  // namespace braid
