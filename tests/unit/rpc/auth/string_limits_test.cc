#include "server/rpc/auth/string_limits.h"

#include <string>

#include "braid/v1/data.pb.h"
#include "braid/v1/training.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kLongest(1024, 'x');
const std::string kTooLong(1025, 'x');

auto RefusesEntries(const std::string& field) {
  return RefusesField(field, AllOf(HasSubstr("1025 entries"), HasSubstr("at most 1024")));
}

auto Refuses(const std::string& field) {
  return RefusesField(field, AllOf(HasSubstr("1025 bytes"), HasSubstr("at most 1024")));
}

TEST(StringLimitsTest, LimitsStringsOfEveryRequest) {
  braid::v1::CreateTrainerRequest create;
  create.set_name(kLongest);
  create.set_request_id(kLongest);
  EXPECT_THAT(CheckStrings(create), IsOk());
  create.set_request_id(kTooLong);
  EXPECT_THAT(CheckStrings(create), Refuses("request_id"));

  braid::v1::EvaluateRequest evaluate;
  evaluate.add_metrics(kLongest);
  EXPECT_THAT(CheckStrings(evaluate), IsOk());
  evaluate.add_metrics(kTooLong);
  EXPECT_THAT(CheckStrings(evaluate), Refuses("metrics[1]"));
}

TEST(StringLimitsTest, LimitsStringsOfNestedMessages) {
  braid::v1::CreateTrainerRequest create;
  create.add_losses();
  create.add_losses()->set_output(kTooLong);
  EXPECT_THAT(CheckStrings(create), Refuses("losses[1].output"));
  create.clear_losses();
  for (int i = 0; i < 4; ++i) {
    create.mutable_options()->add_parameter_groups()->set_pattern(kLongest);
  }
  EXPECT_THAT(CheckStrings(create), IsOk());
  create.mutable_options()->mutable_parameter_groups(3)->set_pattern(kTooLong);
  EXPECT_THAT(CheckStrings(create), Refuses("options.parameter_groups[3].pattern"));
  create.clear_options();
  auto* const stage = create.mutable_options()->add_stages();
  stage->add_devices("cpu:0");
  stage->add_devices(kTooLong);
  EXPECT_THAT(CheckStrings(create), Refuses("options.stages[0].devices[1]"));

  braid::v1::StepRequest step;
  step.mutable_sender()->set_client_id(kTooLong);
  EXPECT_THAT(CheckStrings(step), Refuses("sender.client_id"));
  step.clear_sender();
  step.add_targets()->set_datatype(kTooLong);
  EXPECT_THAT(CheckStrings(step), Refuses("targets[0].datatype"));
}

TEST(StringLimitsTest, LimitsStringsOfSettings) {
  inference::LogSettingsRequest log;
  (*log.mutable_settings())["log_level"].set_string_param(kTooLong);
  EXPECT_THAT(CheckStrings(log), Refuses("settings.log_level.string_param"));
  log.clear_settings();
  (*log.mutable_settings())[kTooLong].set_bool_param(true);
  EXPECT_THAT(CheckStrings(log), Refuses("settings." + kTooLong.substr(0, 128)));
  inference::TraceSettingRequest trace;
  (*trace.mutable_settings())["trace_level"].add_value(kTooLong);
  EXPECT_THAT(CheckStrings(trace), Refuses("settings.trace_level.value[0]"));
}

TEST(StringLimitsTest, AcceptsLongBytesAndConfigurations) {
  braid::v1::StepRequest step;
  auto* const tensor = step.add_inputs();
  tensor->set_data(kTooLong);
  EXPECT_THAT(CheckStrings(step), IsOk());
  braid::v1::CreateTrainerRequest create;
  create.add_losses()->set_module(kTooLong);
  EXPECT_THAT(CheckStrings(create), IsOk());
  inference::RepositoryModelLoadRequest load;
  (*load.mutable_parameters())["config"].set_string_param(kTooLong);
  EXPECT_THAT(CheckStrings(load), IsOk());
  (*load.mutable_parameters())[kTooLong].set_bool_param(true);
  EXPECT_THAT(CheckStrings(load), Refuses("parameters." + kTooLong.substr(0, 128)));
}

TEST(StringLimitsTest, LimitsEntriesOfLists) {
  braid::v1::CreateTrainerRequest most;
  for (int i = 0; i < 1024; ++i) {
    most.add_losses();
    most.mutable_options()->add_parameter_groups();
    most.mutable_options()->mutable_schedule()->mutable_multi_step()->add_milestones(i);
  }
  EXPECT_THAT(CheckStrings(most), IsOk());
  braid::v1::CreateTrainerRequest create = most;
  create.add_losses();
  EXPECT_THAT(CheckStrings(create), RefusesEntries("losses"));
  create = most;
  create.mutable_options()->add_parameter_groups();
  EXPECT_THAT(CheckStrings(create), RefusesEntries("options.parameter_groups"));
  create = most;
  create.mutable_options()->mutable_schedule()->mutable_multi_step()->add_milestones(1024);
  EXPECT_THAT(CheckStrings(create), RefusesEntries("options.schedule.multi_step.milestones"));

  braid::v1::EvaluateRequest evaluate;
  inference::LogSettingsRequest log;
  inference::ModelInferRequest infer;
  for (int i = 0; i < 1025; ++i) {
    evaluate.add_metrics("accuracy");
    (*log.mutable_settings())[std::to_string(i)];
    (*infer.mutable_parameters())[std::to_string(i)];
  }
  EXPECT_THAT(CheckStrings(evaluate), RefusesEntries("metrics"));
  EXPECT_THAT(CheckStrings(log), RefusesEntries("settings"));
  EXPECT_THAT(CheckStrings(infer), RefusesEntries("parameters"));
}

TEST(StringLimitsTest, DoesNotLimitTensorsAndNumbers) {
  braid::v1::CreateTrainerRequest create;
  create.add_losses()->mutable_class_weights()->Resize(50000, 1);
  EXPECT_THAT(CheckStrings(create), IsOk());
  braid::v1::BackwardRequest backward;
  for (int i = 0; i < 1025; ++i) {
    backward.add_output_gradients();
  }
  EXPECT_THAT(CheckStrings(backward), IsOk());
}

TEST(StringLimitsTest, LimitsPathsOfDatasetsButNotTheirNumber) {
  braid::v1::StartDatasetUploadRequest start;
  for (int i = 0; i < 1025; ++i) {
    start.add_files()->set_path(std::to_string(i));
  }
  EXPECT_THAT(CheckStrings(start), IsOk());
  start.mutable_files(3)->set_path(std::string(1025, 'a'));
  EXPECT_THAT(CheckStrings(start), RefusesField("files[3].path", HasSubstr("1025 bytes")));
}

TEST(StringLimitsTest, LimitsStringsOfInferenceRequests) {
  inference::ModelInferRequest longest;
  longest.set_id(kLongest);
  longest.set_model_name(kLongest);
  (*longest.mutable_parameters())[kLongest].set_string_param(kLongest);
  longest.add_inputs()->set_name(kLongest);
  longest.add_raw_input_contents(kTooLong);
  EXPECT_THAT(CheckStrings(longest), IsOk());

  inference::ModelInferRequest request = longest;
  request.set_id(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("id"));
  request = longest;
  request.set_model_name(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("model_name"));
  request = longest;
  request.set_model_version(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("model_version"));
  request = longest;
  (*request.mutable_parameters())["p"].set_string_param(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("parameters.p"));
  request = longest;
  (*request.mutable_parameters())[kTooLong].set_bool_param(true);
  EXPECT_THAT(CheckStrings(request), Refuses("parameters." + kTooLong.substr(0, 128)));
  request = longest;
  request.mutable_inputs(0)->set_datatype(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("inputs[0].datatype"));
  request = longest;
  request.add_inputs()->set_name(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("inputs[1].name"));
  request = longest;
  (*request.add_outputs()->mutable_parameters())["p"].set_string_param(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("outputs[0].parameters.p"));
}

}  // namespace
}  // namespace braid
