#include "server/rpc/auth/method_rules.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "braid/v1/data.pb.h"
#include "braid/v1/device.pb.h"
#include "braid/v1/job.pb.h"
#include "braid/v1/model.pb.h"
#include "braid/v1/training.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.pb.h"
#include "server/rpc/auth/access.h"

namespace braid {
namespace {

std::vector<const google::protobuf::MethodDescriptor*> AllMethods() {
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  for (const google::protobuf::FileDescriptor* file :
       {inference::ModelInferRequest::descriptor()->file(),
        braid::v1::StepRequest::descriptor()->file(),
        braid::v1::ListVersionsRequest::descriptor()->file(),
        braid::v1::ListDevicesRequest::descriptor()->file(),
        braid::v1::GetDatasetRequest::descriptor()->file(),
        braid::v1::GetJobRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m));
      }
    }
  }
  return methods;
}

TEST(MethodRulesTest, EveryMethodHasARule) {
  std::set<std::string> methods;
  for (const auto* method : AllMethods()) {
    EXPECT_TRUE(methods.insert(method->name()).second) << method->name() << " is there twice";
    EXPECT_EQ(RuleOf(method->name()).method, method->name())
        << method->full_name() << " has no rule in method_rules.cc";
  }
  for (const MethodRule& rule : MethodRules()) {
    EXPECT_TRUE(methods.count(std::string(rule.method)) == 1) << rule.method;
  }
  EXPECT_EQ(methods.size(), MethodRules().size());
}

TEST(MethodRulesTest, OnlyProbesNeedNoCredentials) {
  std::set<std::string> open;
  for (const MethodRule& rule : MethodRules()) {
    if (rule.need == Need::kOpen) {
      open.insert(std::string(rule.method));
    }
  }
  EXPECT_THAT(open, ::testing::ElementsAre("ServerLive", "ServerReady"));
}

TEST(MethodRulesTest, UnknownMethodsNeedAnAdmin) {
  EXPECT_EQ(RuleOf("NoSuchMethod").need, Need::kAdmin);
}

// A request that names a model or a trainer is about it.
TEST(MethodRulesTest, SubjectsMatchTheRequestsFields) {
  for (const auto* method : AllMethods()) {
    const MethodRule& rule = RuleOf(method->name());
    const google::protobuf::Descriptor* request = method->input_type();
    if (request->FindFieldByName("trainer") != nullptr) {
      EXPECT_EQ(rule.subject, Subject::kTrainer) << method->name();
    }
    if (request->FindFieldByName("model") != nullptr ||
        (request->FindFieldByName("model_name") != nullptr && rule.need != Need::kAnyone)) {
      EXPECT_EQ(rule.subject, Subject::kModel) << method->name();
    }
  }
}

TEST(NamesInTest, ReadsTheFieldOfTheSubject) {
  braid::v1::CreateTrainerRequest create;
  create.set_model("m");
  create.set_name("t");
  EXPECT_EQ(NamesIn(create, Subject::kModel).model, "m");
  EXPECT_EQ(NamesIn(create, Subject::kModel).trainer, "t");

  braid::v1::GetTrainerRequest get;
  get.set_name("t");
  EXPECT_EQ(NamesIn(get, Subject::kTrainer).trainer, "t");

  inference::ModelReadyRequest ready;
  ready.set_name("m");
  EXPECT_EQ(NamesIn(ready, Subject::kModel).model, "m");

  inference::ModelInferRequest infer;
  infer.set_model_name("m");
  EXPECT_EQ(NamesIn(infer, Subject::kModel).model, "m");

  braid::v1::PublishRequest publish;
  publish.set_trainer("t");
  EXPECT_EQ(NamesIn(publish, Subject::kTrainer).model, "");
  publish.set_target_model("m");
  EXPECT_EQ(NamesIn(publish, Subject::kTrainer).model, "m");
  EXPECT_EQ(NamesIn(publish, Subject::kTrainer).trainer, "t");

  braid::v1::StepRequest step;
  step.set_trainer("t");
  EXPECT_EQ(NamesIn(step, Subject::kTrainer).trainer, "t");
}

TEST(NeedOfTest, ChangingSettingsNeedsAnAdmin) {
  inference::LogSettingsRequest request;
  EXPECT_EQ(NeedOf(request, Need::kAnyone), Need::kAnyone);
  (*request.mutable_settings())["log_info"].set_bool_param(true);
  EXPECT_EQ(NeedOf(request, Need::kAnyone), Need::kAdmin);
  EXPECT_EQ(NeedOf(inference::ServerMetadataRequest(), Need::kAnyone), Need::kAnyone);
}

}  // namespace
}  // namespace braid
