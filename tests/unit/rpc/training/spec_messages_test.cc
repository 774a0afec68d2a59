#include "server/rpc/training/spec_messages.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "server/rpc/training/stored_requests.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;

braid::v1::CreateTrainerRequest Request(const std::string& text) {
  braid::v1::CreateTrainerRequest message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

absl::StatusOr<TrainerSpec> Read(const std::string& text) { return ReadSpec(Request(text)); }

TEST(ReadSpecTest, DefaultsMatchPyTorch) {
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerSpec spec,
                             Read("model: 'm' losses { name: 'mse' } optimizer { sgd { } }"));
  EXPECT_EQ(spec.name, "");
  EXPECT_EQ(spec.base_version, 0);
  ASSERT_EQ(spec.losses.size(), 1);
  EXPECT_EQ(spec.losses[0].reduction, Reduction::kMean);
  EXPECT_EQ(spec.losses[0].weight, 1);
  EXPECT_FALSE(spec.losses[0].ignore_index.has_value());
  EXPECT_EQ(std::get<SgdSpec>(spec.optimizer).lr, 1e-3);
  EXPECT_EQ(std::get<SgdSpec>(spec.optimizer).momentum, 0);
  EXPECT_EQ(spec.loss_mode, LossMode::kCentral);
  EXPECT_EQ(spec.non_finite, NonFinitePolicy::kFail);
  EXPECT_EQ(spec.sync, SyncMode::kAuto);
  EXPECT_EQ(spec.checkpoints.keep, 3);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(spec.schedule.kind));
}

TEST(ReadSpecTest, EveryOptimizerHasItsOwnDefaults) {
  const auto adamw = std::get<AdamSpec>(Read("optimizer { adamw { } }")->optimizer);
  EXPECT_TRUE(adamw.decoupled_weight_decay);
  EXPECT_EQ(adamw.lr, 1e-3);
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_EQ(adamw.beta2, 0.999);
  EXPECT_EQ(adamw.eps, 1e-8);
  EXPECT_EQ(adamw.weight_decay, 1e-2);
  const auto adam = std::get<AdamSpec>(Read("optimizer { adam { } }")->optimizer);
  EXPECT_FALSE(adam.decoupled_weight_decay);
  EXPECT_EQ(adam.weight_decay, 0);
  const auto rmsprop = std::get<RmsPropSpec>(Read("optimizer { rmsprop { } }")->optimizer);
  EXPECT_EQ(rmsprop.lr, 1e-2);
  EXPECT_EQ(rmsprop.alpha, 0.99);
  const auto adagrad = std::get<AdagradSpec>(Read("optimizer { adagrad { } }")->optimizer);
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
}

TEST(ReadSpecTest, KeepsAnExplicitZero) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const TrainerSpec spec,
      Read("losses { ignore_index: 0 weight: 0 } optimizer { adamw { lr: 0 "
           "beta1: 0 weight_decay: 0 } } options { checkpoints { keep: 0 } }"));
  EXPECT_EQ(spec.losses[0].ignore_index, 0);
  EXPECT_EQ(spec.losses[0].weight, 0);
  const auto& adamw = std::get<AdamSpec>(spec.optimizer);
  EXPECT_EQ(adamw.lr, 0);
  EXPECT_EQ(adamw.beta1, 0);
  EXPECT_EQ(adamw.weight_decay, 0);
  EXPECT_EQ(spec.checkpoints.keep, 0);
}

TEST(ReadSpecTest, ErrorsNameTheField) {
  EXPECT_THAT(Read("optimizer { }"), RefusesField("optimizer", HasSubstr("sgd, adam")));
  EXPECT_THAT(Read(""), RefusesField("optimizer", HasSubstr("missing")));
  EXPECT_THAT(Read("version: -1"), RefusesField("version", HasSubstr("-1 is not a version")));
  braid::v1::CreateTrainerRequest request;
  request.add_losses()->set_reduction(static_cast<braid::v1::Loss::Reduction>(9));
  EXPECT_THAT(ReadSpec(request), RefusesField("losses[0].reduction", HasSubstr("unknown value 9")));
  const std::string sgd = "optimizer { sgd { } } ";
  EXPECT_THAT(Read(sgd + "options { idle_timeout_seconds: -1 }"),
              RefusesField("idle_timeout_seconds", HasSubstr("-1 is out of range")));
  EXPECT_THAT(Read(sgd + "options { checkpoints { every_seconds: nan } }"),
              RefusesField("checkpoints.every_seconds", HasSubstr("out of range")));
  EXPECT_THAT(Read(sgd + "options { grad_scaler { } }"),
              RefusesField("grad_scaler", HasSubstr("PRECISION_FLOAT16")));
  request = Request(sgd);
  request.mutable_options()->set_precision(static_cast<braid::v1::Precision>(7));
  EXPECT_THAT(ReadSpec(request), RefusesField("precision", HasSubstr("unknown value 7")));
}

// Requests that set every field, one per schedule and optimizer.
class RoundTripTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, RoundTripTest,
    ::testing::Values(
        "optimizer { sgd { lr: 1 momentum: 2 dampening: 3 weight_decay: 4 nesterov: true } }"
        "options { schedule { step { step_size: 5 gamma: 0.5 } } }",
        "optimizer { adam { lr: 1 beta1: 0.5 beta2: 0.25 eps: 2 weight_decay: 3 amsgrad: true } }"
        "options { schedule { multi_step { milestones: [3, 5] gamma: 0.5 } } }",
        "optimizer { adamw { lr: 1 beta1: 0.5 beta2: 0.25 eps: 2 weight_decay: 3 amsgrad: true } }"
        "options { schedule { warmup { steps: 3 start_factor: 0.5 } cosine { t_max: 9 eta_min: 1 } "
        "} }",
        "optimizer { rmsprop { lr: 1 alpha: 2 eps: 3 weight_decay: 4 momentum: 5 centered: true } }"
        "options { schedule { exponential { gamma: 0.5 } } }",
        "optimizer { adagrad { lr: 1 lr_decay: 2 weight_decay: 3 initial_accumulator_value: 4 eps: "
        "5 } }"
        "options { schedule { one_cycle { max_lr: 1 total_steps: 2 pct_start: 0.5 linear: true "
        "cycle_momentum: false base_momentum: 3 max_momentum: 4 div_factor: 5 final_div_factor: 6 "
        "three_phase: true } } }",
        "optimizer { sgd { lr: 1 } } options { schedule { plateau { interval: 1 maximize: true "
        "factor: 0.5 patience: 2 threshold: 3 absolute_threshold: true cooldown: 4 min_lr: 5 "
        "eps: 6 } } }"));

TEST_P(RoundTripTest, WritesWhatItRead) {
  braid::v1::CreateTrainerRequest request = Request(std::string(R"(
    model: 'm' version: 3 name: 't' request_id: 'r'
    losses { name: 'cross_entropy' output: 'y' target: 'z' reduction: REDUCTION_SUM weight: 2
             ignore_index: 7 label_smoothing: 0.1 class_weights: [1, 2] }
    losses { name: 'huber' output: 'a' target: 'b' reduction: REDUCTION_MEAN weight: 1
             pos_weight: [3] beta: 4 delta: 5 log_target: true }
    losses { name: 'gaussian_nll' outputs: ['a', 'b'] target_lengths: 'c' input_lengths: 'd'
             reduction: REDUCTION_BATCHMEAN weight: 1 pos_weight: [3, 4] pos_weight_shape: [2, 1]
             margin: 0.5 p: 3 swap: true eps: 0.25 full: true log_input: false gamma: 1 alpha: 0
             smooth: 2 blank: 6 zero_infinity: true })") +
                                                    GetParam());
  request.mutable_options()->MergeFrom(Request(R"(options {
    loss_mode: LOSS_MODE_PER_REPLICA unweighted_mean: true
    parameter_groups { pattern: 'a' frozen: true }
    parameter_groups { pattern: 'b' lr: 1 weight_decay: 2 momentum: 3 }
    clipping { max_norm: 1 norm_type: 3 max_value: 2 }
    precision: PRECISION_FLOAT16
    grad_scaler { init_scale: 2 growth_factor: 3 backoff_factor: 0.25 growth_interval: 7 }
    non_finite: NON_FINITE_SKIP sync: SYNC_ALL_REDUCE sync_batch_norm: true seed: 9
    eval_modules: ['^a$', 'bn']
    stages { path: 'p' devices: ['cpu:0', 'cpu:1'] } stages { path: 'q' devices: 'cpu:1' }
    output_device: 'host' micro_batch: 8
    checkpoints { every_operations: 5 every_seconds: 1.5 keep: 2 } idle_timeout_seconds: 60
    journal: JOURNAL_NONE
    journal_history { bytes: 4096 seconds: 60 } })")
                                           .options());
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerSpec spec, ReadSpec(request));
  EXPECT_EQ(spec.request_id, "r");
  braid::v1::Trainer told;
  WriteSpec(spec, &told);
  EXPECT_EQ(told.name(), "t");
  EXPECT_EQ(told.model(), "m");
  EXPECT_EQ(told.base_version(), 3);
  braid::v1::CreateTrainerRequest again = request;
  *again.mutable_losses() = told.losses();
  *again.mutable_optimizer() = told.optimizer();
  *again.mutable_options() = told.options();
  MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(request, again)) << difference;
}

// Existing trainer: with what the server chose.
TrainerSpec Existing() {
  TrainerSpec spec = *Read(
      "model: 'm' name: 't' version: 3 losses { name: 'cross_entropy' output: 'y' target: 'target' "
      "ignore_index: -100 } optimizer { sgd { lr: 0.1 } } options { stages { devices: 'cpu:0' } "
      "output_device: 'cpu:0' parameter_groups { pattern: 'bias' lr: 0.2 } }");
  return spec;
}

absl::Status Compare(const std::string& asked) {
  const absl::StatusOr<TrainerSpec> spec = Read("model: 'm' " + asked);
  return spec.ok() ? CheckSameArguments(*spec, Existing()) : spec.status();
}

TEST(CheckSameArgumentsTest, FillsInDefaults) {
  const std::string group = "parameter_groups { pattern: 'bias' lr: 0.2 } ";
  EXPECT_THAT(Compare("losses { name: 'cross_entropy' } optimizer { sgd { lr: 0.1 } } options { " +
                      group + "}"),
              IsOk());
  EXPECT_THAT(Compare("version: 3 losses { name: 'cross_entropy' output: 'y' weight: 1 target: "
                      "'target' } optimizer { sgd { lr: 0.1 momentum: 0 } } options { loss_mode: "
                      "LOSS_MODE_CENTRAL sync: SYNC_AUTO stages { } checkpoints { keep: 3 } " +
                      group + "}"),
              IsOk());
}

TEST(CheckSameArgumentsTest, NamesTheFirstDifference) {
  const std::string loss = "losses { name: 'cross_entropy' } ";
  const std::string sgd = "optimizer { sgd { lr: 0.1 } } ";
  const std::string group = "parameter_groups { pattern: 'bias' lr: 0.2 } ";
  for (const auto& [asked, difference] : {
           std::pair<std::string, std::string>{
               absl::StrCat(loss, "optimizer { sgd { lr: 0.25 } } options { seed: 1 ", group, "}"),
               "optimizer.sgd.lr is 0.1, requested 0.25 (expected"},
           {absl::StrCat(loss, "optimizer { sgd { } } options { ", group, "}"),
            "optimizer.sgd.lr is 0.1, requested 0.001"},
           {"losses { name: 'mse' } " + sgd,
            "losses[0].name is \"cross_entropy\", requested \"mse\""},
           {loss + sgd,
            "options.parameter_groups[0] is { pattern: \"bias\" lr: 0.2 }, not requested"},
           {absl::StrCat(loss, sgd, "options { seed: 7 ", group, "}"),
            "options.seed is not set, requested 7"},
           {loss + sgd + "version: 2", "base_version is 3, requested 2"},
       }) {
    EXPECT_THAT(Compare(asked), StatusIs(absl::StatusCode::kAlreadyExists,
                                         AllOf(HasSubstr("trainer 't'"), HasSubstr(difference))));
  }
  EXPECT_THAT(Compare("losses { name: 'cross_entropy' beta: 2 } " + sgd),
              RefusesField("losses[0].beta", HasSubstr("")));
}

TEST(ReadStoredSpecTest, ReadsASerializedRequest) {
  const auto request = Request("model: 'm' optimizer { sgd { lr: 2 } }");
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerSpec spec, ReadStoredSpec(request.SerializeAsString()));
  EXPECT_EQ(spec.model, "m");
  EXPECT_EQ(std::get<SgdSpec>(spec.optimizer).lr, 2);
  EXPECT_EQ(ReadStoredSpec("\xff").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace braid
