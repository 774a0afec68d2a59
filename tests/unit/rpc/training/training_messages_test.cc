#include "server/rpc/training/training_messages.h"

#include <string>

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

TEST(ReadOperationTest, ConvertsEachKindOfRequest) {
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

TEST(ReadOperationTest, ErrorsNameTheField) {
  braid::v1::ForwardRequest forward;
  forward.set_mode(static_cast<braid::v1::ForwardRequest::Mode>(9));
  EXPECT_THAT(ReadOperation(forward), RefusesField("mode", HasSubstr("unknown value 9")));
  EXPECT_THAT(ReadOperation(FromText<braid::v1::StepRequest>("targets { datatype: 'x' }")),
              RefusesField("targets[0].datatype", HasSubstr("'x'")));
}

TEST(ReadOperationTest, KeepsTheGraphOnRequest) {
  EXPECT_TRUE(ReadOperation(FromText<braid::v1::ForwardRequest>("keep_graph: true"))->keep_graph);
  EXPECT_FALSE(ReadOperation(FromText<braid::v1::ForwardRequest>(""))->keep_graph);
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Operation backward,
      ReadOperation(FromText<braid::v1::BackwardRequest>(
          "sequence: 2 output_gradients { name: 'y' datatype: 'UINT8' shape: 1 data: 'a' }")));
  EXPECT_EQ(backward.kind, OperationKind::kBackward);
  EXPECT_EQ(backward.output_gradients[0].name, "y");
  EXPECT_THAT(ReadOperation(FromText<braid::v1::BackwardRequest>(
                  "output_gradients { name: 'y' datatype: 'FP32' shape: 1 data: 'a' }")),
              RefusesField("output_gradients[0].data", HasSubstr("")));
}

TEST(ReadHyperParametersTest, ReadsEveryField) {
  const HyperParameters hyper = ReadHyperParameters(FromText<braid::v1::HyperParameters>(
      "lr: 1 weight_decay: 2 momentum: 3 group_lr: [4, 5] metric: 6"));
  EXPECT_EQ(hyper.lr, 1);
  EXPECT_EQ(hyper.weight_decay, 2);
  EXPECT_EQ(hyper.momentum, 3);
  EXPECT_THAT(hyper.group_lr, ElementsAre(4, 5));
  EXPECT_EQ(hyper.metric, 6);
}

TEST(WriteTrainerTest, WritesTheState) {
  TrainerInfo info;
  info.devices = {"cpu:0", "cpu:1"};
  info.step = 4;
  info.applied_sequence = 5;
  info.durable_sequence = 3;
  info.accumulated = 6;
  info.skipped = 7;
  info.lr = 0.5;
  info.memory = {{"cpu:0", 100, 200}};
  braid::v1::Trainer message;
  WriteTrainer(info, &message);
  EXPECT_THAT(message.devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(message.step(), 4);
  EXPECT_EQ(message.applied_sequence(), 5);
  EXPECT_EQ(message.durable_sequence(), 3);
  EXPECT_EQ(message.accumulated(), 6);
  EXPECT_EQ(message.skipped(), 7);
  EXPECT_EQ(message.lr(), 0.5);
  EXPECT_EQ(message.memory(0).current_bytes(), 100);
  EXPECT_EQ(message.memory(0).peak_bytes(), 200);
}

TEST(WriteReplyTest, WritesTheSplitOnRequest) {
  OperationResult result;
  result.applied_sequence = 3;
  result.durable_sequence = 1;
  result.step = 2;
  result.replayed = true;
  result.skipped = true;
  result.loss = 0.25;
  result.gradient_norm = 4;
  result.lr = 0.1;
  result.phases = {{"forward", absl::Milliseconds(3)}};
  result.chunks = {{"cpu:0", 10, "features", {"[10, 5]"}, {"[10, 2]"}}, {"cpu:1", 7, "", {}, {}}};
  braid::v1::StepResponse with;
  WriteReply(result, /*with_chunks=*/true, &with);
  EXPECT_EQ(with.loss(), 0.25);
  EXPECT_EQ(with.status().applied_sequence(), 3);
  EXPECT_EQ(with.status().durable_sequence(), 1);
  EXPECT_EQ(with.status().step(), 2);
  EXPECT_TRUE(with.status().replayed());
  EXPECT_TRUE(with.status().skipped());
  EXPECT_EQ(with.status().gradient_norm(), 4);
  EXPECT_EQ(with.status().lr(), 0.1);
  EXPECT_EQ(with.status().phases(0).name(), "forward");
  EXPECT_DOUBLE_EQ(with.status().phases(0).seconds(), 0.003);
  ASSERT_EQ(with.status().chunks_size(), 2);
  EXPECT_EQ(with.status().chunks(0).stage(), "features");
  EXPECT_THAT(with.status().chunks(0).input_shapes(), ElementsAre("[10, 5]"));
  EXPECT_THAT(with.status().chunks(0).output_shapes(), ElementsAre("[10, 2]"));
  EXPECT_EQ(with.status().chunks(1).rows(), 7);
  braid::v1::OptimStepResponse without;
  WriteReply(result, /*with_chunks=*/false, &without);
  EXPECT_EQ(without.status().chunks_size(), 0);
}

TEST(WriteCheckpointTest, WritesAllFields) {
  braid::v1::Checkpoint message;
  WriteCheckpoint({"name", 1, 2, 3, absl::UnixEpoch() + absl::Seconds(4.5)}, &message);
  EXPECT_EQ(message.name(), "name");
  EXPECT_EQ(message.step(), 1);
  EXPECT_EQ(message.sequence(), 2);
  EXPECT_EQ(message.bytes(), 3);
  EXPECT_EQ(message.created(), 4.5);
}

}  // namespace
}  // namespace braid
