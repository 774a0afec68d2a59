#include "client/cli/train_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TrainOptionsTest : public ::testing::Test {
 protected:
  // The options of `braid train` with these arguments.
  TrainOptions& Parse(std::vector<std::string> arguments) {
    AddTrainOptions(app_, options_);
    arguments.insert(arguments.end(), {"--input", "x=x.npy", "--target", "y=y.npy"});
    // CLI11 takes them from the back.
    std::reverse(arguments.begin(), arguments.end());
    EXPECT_NO_THROW(app_.parse(arguments));
    return options_;
  }
  v1::CreateTrainerRequest Request(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& targets = {"y"}) {
    absl::StatusOr<v1::CreateTrainerRequest> request = TrainerRequest(Parse(arguments), targets);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? *request : v1::CreateTrainerRequest();
  }
  std::string Refusal(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& targets = {"y"}) {
    const absl::Status status = TrainerRequest(Parse(arguments), targets).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  CLI::App app_;
  TrainOptions options_;
};

TEST_F(TrainOptionsTest, DefaultsAreLeftToTheServer) {
  const v1::CreateTrainerRequest request = Request({"toy"});
  EXPECT_EQ(request.model(), "toy");
  EXPECT_EQ(request.name(), "");
  ASSERT_THAT(request.losses(), SizeIs(1));
  EXPECT_EQ(request.losses(0).name(), "cross_entropy");
  EXPECT_EQ(request.losses(0).target(), "y");
  EXPECT_TRUE(request.optimizer().has_sgd());
  EXPECT_FALSE(request.optimizer().sgd().has_lr());
  EXPECT_EQ(request.options().SerializeAsString(), "");
}

TEST_F(TrainOptionsTest, EveryOptionHasItsField) {
  const v1::CreateTrainerRequest request = Request({"toy",
                                                    "--trainer",
                                                    "t",
                                                    "--loss",
                                                    "mse:weight=2",
                                                    "--loss",
                                                    "l1:output=b,target=z",
                                                    "--loss-mode",
                                                    "per_replica",
                                                    "--optimizer",
                                                    "RMSprop:alpha=0.9",
                                                    "--lr",
                                                    "0.1",
                                                    "--weight-decay",
                                                    "0.01",
                                                    "--momentum",
                                                    "0.9",
                                                    "--group",
                                                    "bias$:frozen=true",
                                                    "--schedule",
                                                    "StepLR:step_size=10",
                                                    "--warmup",
                                                    "5",
                                                    "--clip-grad-norm",
                                                    "1.5",
                                                    "--precision",
                                                    "bfloat16",
                                                    "--sync-batch-norm",
                                                    "--micro-batch",
                                                    "8",
                                                    "--stage",
                                                    "a=cpu:0,cpu:1",
                                                    "--stage",
                                                    "b=cpu:0",
                                                    "--output-device",
                                                    "host",
                                                    "--checkpoint-every",
                                                    "100",
                                                    "--seed",
                                                    "7",
                                                    "--set",
                                                    "sync=all_reduce",
                                                    "--set",
                                                    "checkpoints.keep=5"});
  EXPECT_EQ(request.name(), "t");
  ASSERT_THAT(request.losses(), SizeIs(2));
  EXPECT_EQ(request.losses(0).weight(), 2);
  EXPECT_EQ(request.losses(0).target(), "y");
  EXPECT_EQ(request.losses(1).target(), "z");
  const v1::RmsProp& rmsprop = request.optimizer().rmsprop();
  EXPECT_EQ(rmsprop.alpha(), 0.9);
  EXPECT_EQ(rmsprop.lr(), 0.1);
  EXPECT_EQ(rmsprop.weight_decay(), 0.01);
  EXPECT_EQ(rmsprop.momentum(), 0.9);
  const v1::TrainingOptions& options = request.options();
  EXPECT_EQ(options.loss_mode(), v1::LOSS_MODE_PER_REPLICA);
  ASSERT_THAT(options.parameter_groups(), SizeIs(1));
  EXPECT_EQ(options.parameter_groups(0).pattern(), "bias$");
  EXPECT_EQ(options.schedule().step().step_size(), 10);
  EXPECT_EQ(options.schedule().warmup().steps(), 5);
  EXPECT_EQ(options.clipping().max_norm(), 1.5);
  EXPECT_EQ(options.precision(), v1::PRECISION_BFLOAT16);
  EXPECT_TRUE(options.sync_batch_norm());
  EXPECT_EQ(options.micro_batch(), 8);
  ASSERT_THAT(options.stages(), SizeIs(2));
  EXPECT_THAT(options.stages(0).devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(options.stages(1).path(), "b");
  EXPECT_EQ(options.output_device(), "host");
  EXPECT_EQ(options.checkpoints().every_operations(), 100);
  EXPECT_EQ(options.checkpoints().keep(), 5);
  EXPECT_EQ(options.seed(), 7);
  EXPECT_EQ(options.sync(), v1::SYNC_ALL_REDUCE);
}

TEST_F(TrainOptionsTest, OptionsThatTheOptimizerLacks) {
  EXPECT_THAT(Refusal({"toy", "--optimizer", "AdamW", "--momentum", "0.9"}),
              HasSubstr("--optimizer AdamW: \"momentum\" is unknown"));
}

TEST_F(TrainOptionsTest, WordsThatAreUnknown) {
  EXPECT_EQ(Refusal({"toy", "--precision", "float8"}),
            "--precision: precision: \"float8\" is unknown; known: model, bfloat16, float16");
}

TEST_F(TrainOptionsTest, SeveralTargetsAreNamed) {
  EXPECT_EQ(Refusal({"toy", "--loss", "mse"}, {"y", "z"}),
            "--loss mse needs a target=NAME, one of y, z");
}

TEST_F(TrainOptionsTest, NoTargetAtAll) {
  EXPECT_EQ(Refusal({"toy"}, {}), "--loss cross_entropy needs a --target");
}

TEST_F(TrainOptionsTest, TheModelsOwnLossTakesNoTarget) {
  const v1::CreateTrainerRequest request = Request({"toy", "--loss-mode", "model"}, {"y", "z"});
  ASSERT_THAT(request.losses(), SizeIs(1));
  EXPECT_EQ(request.losses(0).SerializeAsString(), "");
}

TEST_F(TrainOptionsTest, AttachTakesATrainerAsItIs) {
  EXPECT_TRUE(CheckAttach(Parse({"--attach", "t", "--seed", "7", "--depth", "4"})).ok());
}

TEST_F(TrainOptionsTest, AttachDoesNotGoWithOptionsOfATrainersCreation) {
  EXPECT_EQ(CheckAttach(Parse({"--attach", "t", "--lr", "1"})).message(),
            "--lr is decided when a trainer is made: it does not go with --attach");
}

TEST_F(TrainOptionsTest, AModelOrATrainerIsNeeded) {
  EXPECT_THAT(std::string(CheckAttach(Parse({})).message()), HasSubstr("needs a MODEL"));
}

}  // namespace
}  // namespace braid::cli
