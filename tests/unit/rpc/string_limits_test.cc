#include "server/rpc/string_limits.h"

#include <string>

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

auto Refuses(const std::string& field) {
  return RefusesField(field, AllOf(HasSubstr("has 1025 bytes"), HasSubstr("at most 1024")));
}

TEST(StringLimitsTest, StringsOfEveryRequest) {
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

TEST(StringLimitsTest, StringsOfAnInferenceRequest) {
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
  request.add_inputs()->set_name(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("inputs[1].name"));
  request = longest;
  (*request.add_outputs()->mutable_parameters())["p"].set_string_param(kTooLong);
  EXPECT_THAT(CheckStrings(request), Refuses("outputs[0].parameters.p"));
}

}  // namespace
}  // namespace braid
