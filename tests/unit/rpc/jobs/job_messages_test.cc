#include "server/rpc/jobs/job_messages.h"

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/rpc/jobs/stored_job_spec.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

braid::v1::JobSpec Parse(const std::string& text) {
  braid::v1::JobSpec message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

braid::v1::JobSpec Training() {
  return Parse(R"(
    train {
      model: "net"
      data { path: "train.parquet" inputs { name: "x" columns: "image" datatype: "FP32" scale: 0.5 }
             targets { name: "target" columns: "label" } }
      losses { name: "cross_entropy" }
      optimizer { sgd { lr: 0.1 } }
      epochs: 6
      batch_size: 256
      evaluation { path: "test.parquet" every { steps: 10 } metrics: "accuracy" }
      publish: PUBLISH_BEST
      best_metric: "accuracy"
    })");
}

braid::v1::JobSpec Inference() {
  return Parse(R"(
    infer {
      model: "net"
      data { path: "test.parquet" inputs { name: "x" columns: ["a", "b"] } }
      output { path: "scores.parquet" keep: "id" outputs { name: "logits" } }
    })");
}

TEST(JobMessagesTest, ReadsATrainingJob) {
  const auto spec = ReadJobSpec("seven", Training());
  ASSERT_THAT(spec, IsOk());
  const auto& job = std::get<TrainingJobSpec>(*spec);
  EXPECT_EQ(job.trainer.name, "job-seven");
  EXPECT_EQ(job.trainer.model, "net");
  EXPECT_EQ(job.data.path, "train.parquet");
  ASSERT_EQ(job.data.inputs.size(), 1);
  EXPECT_EQ(job.data.inputs[0].name, "x");
  EXPECT_THAT(job.data.inputs[0].columns, ElementsAre("image"));
  EXPECT_EQ(job.data.inputs[0].type, DataType::kFp32);
  EXPECT_EQ(job.data.inputs[0].scale, 0.5);
  EXPECT_EQ(job.plan.epochs, 6);
  EXPECT_EQ(job.plan.batch_size, 256);
  EXPECT_EQ(job.plan.evaluate_steps, 10);
  EXPECT_EQ(job.plan.publish, JobPublish::kBest);
  EXPECT_EQ(job.plan.best_metric, "accuracy");
  EXPECT_TRUE(job.shuffle);
  ASSERT_TRUE(job.evaluation);
  EXPECT_EQ(job.evaluation->path, "test.parquet");
  EXPECT_EQ(job.evaluation->batch_size, 256);
}

TEST(JobMessagesTest, ATrainingJobWritesACheckpointEveryMinuteUnlessItsPolicySaysOtherwise) {
  braid::v1::JobSpec message = Training();
  EXPECT_EQ(std::get<TrainingJobSpec>(*ReadJobSpec("a", message)).trainer.checkpoints.every,
            absl::Seconds(60));
  message.mutable_train()->mutable_options()->mutable_checkpoints()->set_every_operations(5);
  const CheckpointPolicy policy =
      std::get<TrainingJobSpec>(*ReadJobSpec("a", message)).trainer.checkpoints;
  EXPECT_EQ(policy.every_operations, 5);
  EXPECT_EQ(policy.every, absl::ZeroDuration());
}

TEST(JobMessagesTest, StoresTheLengthOfAOneCycleScheduleThatHasNone) {
  const auto stored_steps = [](int64_t given) {
    braid::v1::JobSpec message = Training();
    message.mutable_train()
        ->mutable_options()
        ->mutable_schedule()
        ->mutable_one_cycle()
        ->set_total_steps(given);
    braid::v1::CreateTrainerRequest stored;
    EXPECT_TRUE(stored.ParseFromString(
        std::get<TrainingJobSpec>(*ReadJobSpec("a", message)).trainer_request(120)));
    return stored.options().schedule().one_cycle().total_steps();
  };
  EXPECT_EQ(stored_steps(0), 120);
  EXPECT_EQ(stored_steps(50), 50);
}

TEST(JobMessagesTest, EarlyStoppingWatchesTheBestMetricByDefault) {
  braid::v1::JobSpec spec = Training();
  spec.mutable_train()->mutable_early_stopping()->set_patience(3);
  const absl::StatusOr<JobSpec> read = ReadJobSpec("a", spec);
  ASSERT_THAT(read, IsOk());
  const std::optional<EarlyStopping>& rule = std::get<TrainingJobSpec>(*read).plan.early_stopping;
  ASSERT_TRUE(rule.has_value());
  EXPECT_EQ(rule->metric, "accuracy");
  EXPECT_TRUE(rule->larger_is_better);
  EXPECT_EQ(rule->patience, 3);
}

TEST(JobMessagesTest, ReadsAnInferenceJob) {
  const auto spec = ReadJobSpec("a", Inference());
  ASSERT_THAT(spec, IsOk());
  const auto& job = std::get<InferenceJobSpec>(*spec);
  EXPECT_THAT(job.data.inputs[0].columns, ElementsAre("a", "b"));
  EXPECT_EQ(job.output, "scores.parquet");
  EXPECT_THAT(job.keep, ElementsAre("id"));
  EXPECT_THAT(job.outputs, ElementsAre(std::make_pair("logits", "logits")));
  EXPECT_FALSE(job.format);
}

TEST(JobMessagesTest, AColumnIsNamedAsItsTensorByDefault) {
  braid::v1::JobSpec message = Inference();
  message.mutable_infer()->mutable_data()->mutable_inputs(0)->clear_columns();
  EXPECT_THAT(std::get<InferenceJobSpec>(*ReadJobSpec("a", message)).data.inputs[0].columns,
              ElementsAre("x"));
}

struct BadSpec {
  std::string field;
  std::string message;
  std::function<void(braid::v1::JobSpec*)> change;
  bool infer = false;
};

class BadJobSpecTest : public ::testing::TestWithParam<BadSpec> {};

TEST_P(BadJobSpecTest, NamesTheField) {
  braid::v1::JobSpec message = GetParam().infer ? Inference() : Training();
  GetParam().change(&message);
  EXPECT_THAT(ReadJobSpec("a", message),
              RefusesField(GetParam().field, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadJobSpecTest,
    ::testing::Values(
        BadSpec{"spec.kind", "expected train or infer", [](auto* spec) { spec->clear_train(); }},
        BadSpec{"spec.train.model", "missing",
                [](auto* spec) { spec->mutable_train()->clear_model(); }},
        BadSpec{"spec.train.optimizer", "missing",
                [](auto* spec) { spec->mutable_train()->clear_optimizer(); }},
        BadSpec{"spec.train.options.loss_mode", "a job has no client",
                [](auto* spec) {
                  spec->mutable_train()->mutable_options()->set_loss_mode(
                      braid::v1::LOSS_MODE_CLIENT);
                }},
        BadSpec{"spec.train.options.idle_timeout_seconds", "expected 0",
                [](auto* spec) {
                  spec->mutable_train()->mutable_options()->set_idle_timeout_seconds(5);
                }},
        BadSpec{"spec.train.losses[0].reduction", "",
                [](auto* spec) {
                  spec->mutable_train()->mutable_losses(0)->set_reduction(
                      static_cast<braid::v1::Loss::Reduction>(9));
                }},
        BadSpec{"spec.train.version", "-1",
                [](auto* spec) { spec->mutable_train()->set_version(-1); }},
        BadSpec{"spec.train.epochs", "expected epochs or steps",
                [](auto* spec) { spec->mutable_train()->clear_epochs(); }},
        BadSpec{"spec.train.epochs", "0 is out of range",
                [](auto* spec) { spec->mutable_train()->set_epochs(0); }},
        BadSpec{"spec.train.batch_size", "0 is out of range",
                [](auto* spec) { spec->mutable_train()->clear_batch_size(); }},
        BadSpec{"spec.train.validation_split", "expected a number in [0, 1)",
                [](auto* spec) { spec->mutable_train()->set_validation_split(1); }},
        BadSpec{"spec.train.evaluation.path", "validation_split",
                [](auto* spec) { spec->mutable_train()->mutable_evaluation()->clear_path(); }},
        BadSpec{"spec.train.publish", "need an evaluation",
                [](auto* spec) { spec->mutable_train()->clear_evaluation(); }},
        BadSpec{"spec.train.best_metric", "expected loss, or a metric",
                [](auto* spec) { spec->mutable_train()->set_best_metric("mse"); }},
        BadSpec{"spec.train.early_stopping.patience", "0",
                [](auto* spec) { spec->mutable_train()->mutable_early_stopping(); }},
        BadSpec{
            "spec.train.early_stopping.metric", "expected loss, or a metric",
            [](auto* spec) { spec->mutable_train()->mutable_early_stopping()->set_metric("mse"); }},
        BadSpec{"spec.train.early_stopping.min_delta", "-1",
                [](auto* spec) {
                  auto* stopping = spec->mutable_train()->mutable_early_stopping();
                  stopping->set_patience(1);
                  stopping->set_min_delta(-1);
                }},
        BadSpec{"spec.train.from_checkpoint", "without from_trainer",
                [](auto* spec) { spec->mutable_train()->set_from_checkpoint("c"); }},
        BadSpec{"spec.train.data.path", "missing",
                [](auto* spec) { spec->mutable_train()->mutable_data()->clear_path(); }},
        BadSpec{"spec.train.data.inputs[0].datatype", "'float'",
                [](auto* spec) {
                  spec->mutable_train()->mutable_data()->mutable_inputs(0)->set_datatype("float");
                }},
        BadSpec{"spec.train.data.inputs[0].scale", "requires a floating-point datatype",
                [](auto* spec) {
                  spec->mutable_train()->mutable_data()->mutable_inputs(0)->set_datatype("INT64");
                }},
        BadSpec{"spec.train.data.inputs[0].scale", "0 (expected a finite number other than 0)",
                [](auto* spec) {
                  spec->mutable_train()->mutable_data()->mutable_inputs(0)->set_scale(0);
                }},
        BadSpec{"spec.train.data.inputs[1].name", "given twice",
                [](auto* spec) {
                  auto* const data = spec->mutable_train()->mutable_data();
                  *data->add_inputs() = data->inputs(0);
                }},
        BadSpec{
            "spec.infer.data.targets", "takes no targets",
            [](auto* spec) { spec->mutable_infer()->mutable_data()->add_targets()->set_name("t"); },
            true},
        BadSpec{"spec.infer.output.path", "missing",
                [](auto* spec) { spec->mutable_infer()->clear_output(); }, true},
        BadSpec{"spec.infer.output.outputs[0].name", "missing",
                [](auto* spec) {
                  spec->mutable_infer()->mutable_output()->mutable_outputs(0)->clear_name();
                },
                true},
        BadSpec{"spec.infer.batch_size", "-1 is out of range",
                [](auto* spec) { spec->mutable_infer()->set_batch_size(-1); }, true}));

TEST(JobMessagesTest, AStoredSpecIsReadBack) {
  const auto job = MakeNewJob("a", Training(), "alice");
  ASSERT_THAT(job, IsOk());
  EXPECT_EQ(job->kind, JobKind::kTrain);
  EXPECT_EQ(job->model, "net");
  EXPECT_EQ(job->identity, "alice");
  EXPECT_THAT(ReadStoredJobSpec("a", job->spec), IsOk());
  EXPECT_EQ(ReadStoredJobSpec("a", "\xff").status().code(), absl::StatusCode::kDataLoss);
}

TEST(JobMessagesTest, RefusesIdsPrioritiesAndTags) {
  EXPECT_THAT(MakeNewJob("a/b", Training(), ""), RefusesField("id", HasSubstr("'a/b'")));
  EXPECT_THAT(MakeNewJob(std::string(65, 'a'), Training(), ""),
              RefusesField("id", HasSubstr("64")));
  braid::v1::JobSpec message = Training();
  message.set_priority(101);
  EXPECT_THAT(MakeNewJob("a", message, ""), RefusesField("spec.priority", HasSubstr("101")));
  message.set_priority(0);
  message.add_tags("");
  EXPECT_THAT(MakeNewJob("a", message, ""), RefusesField("spec.tags[0]", HasSubstr("0 bytes")));
}

TEST(JobMessagesTest, ErrorsOfTheEngineNameFieldsOfTheRequest) {
  EXPECT_THAT(QualifyJobField(InvalidField("losses[0].name", "unknown")),
              RefusesField("spec.train.losses[0].name", HasSubstr("unknown")));
  EXPECT_THAT(QualifyJobField(InvalidField("micro_batch", "-1")),
              RefusesField("spec.train.options.micro_batch", HasSubstr("-1")));
  EXPECT_THAT(QualifyJobField(InvalidField("evaluation.metrics[0]", "unknown")),
              RefusesField("spec.train.evaluation.metrics[0]", HasSubstr("unknown")));
  EXPECT_THAT(QualifyJobField(InvalidField("spec.infer.data.path", "no file")),
              RefusesField("spec.infer.data.path", HasSubstr("no file")));
}

TEST(JobMessagesTest, MetricsAreSentByName) {
  JobMetricPage page;
  page.metrics = {{1, "loss", 0.5}, {1, "lr", 0.1}, {2, "loss", 0.25}};
  page.next_step = 3;
  braid::v1::GetJobMetricsResponse response;
  WriteMetrics(page, &response);
  ASSERT_EQ(response.series_size(), 2);
  EXPECT_EQ(response.series(0).name(), "loss");
  EXPECT_THAT(response.series(0).steps(), ElementsAre(1, 2));
  EXPECT_THAT(response.series(0).values(), ElementsAre(0.5, 0.25));
  EXPECT_EQ(response.next_step(), 3);
}

}  // namespace
}  // namespace braid
