#include "client/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Returns each input as an output "y" and records the requests.
class FakeInference final : public inference::GRPCInferenceService::Service {
 public:
  grpc::Status ServerLive(grpc::ServerContext* /*context*/,
                          const inference::ServerLiveRequest* /*request*/,
                          inference::ServerLiveResponse* reply) override {
    reply->set_live(true);
    return grpc::Status::OK;
  }

  grpc::Status ModelInfer(grpc::ServerContext* context, const inference::ModelInferRequest* request,
                          inference::ModelInferResponse* reply) override {
    last_request = *request;
    last_deadline = absl::FromChrono(context->deadline());
    if (!refusal.ok()) return refusal;
    reply->set_model_name(request->model_name());
    reply->set_model_version("3");
    for (int i = 0; i < request->inputs_size(); ++i) {
      auto* output = reply->add_outputs();
      output->set_name(absl::StrCat("y", i));
      output->set_datatype(request->inputs(i).datatype());
      *output->mutable_shape() = request->inputs(i).shape();
      if (send_raw) reply->add_raw_output_contents(request->raw_input_contents(i));
    }
    if (!split.empty()) (*reply->mutable_parameters())["split"].set_string_param(split);
    return grpc::Status::OK;
  }

  grpc::Status RepositoryIndex(grpc::ServerContext* /*context*/,
                               const inference::RepositoryIndexRequest* /*request*/,
                               inference::RepositoryIndexResponse* reply) override {
    reply->add_models()->set_name("a");
    reply->add_models()->set_name("b");
    return grpc::Status::OK;
  }

  // Not locked: calls are synchronous, so only one side uses it at a time.
  inference::ModelInferRequest last_request;
  absl::Time last_deadline;
  grpc::Status refusal;
  bool send_raw = true;
  std::string split;
};

class FakeDevices final : public v1::DeviceService::Service {
 public:
  grpc::Status ListDevices(grpc::ServerContext* /*context*/,
                           const v1::ListDevicesRequest* /*request*/,
                           v1::ListDevicesResponse* reply) override {
    reply->add_devices()->set_name("cpu:0");
    reply->set_uptime_seconds(5);
    return grpc::Status::OK;
  }
};

// Has version 2 of the model "m".
class FakeModels final : public v1::ModelService::Service {
 public:
  grpc::Status ListVersions(grpc::ServerContext* /*context*/,
                            const v1::ListVersionsRequest* request,
                            v1::ListVersionsResponse* reply) override {
    auto* version = reply->add_versions();
    version->set_model(request->model());
    version->set_version(2);
    return grpc::Status::OK;
  }
  grpc::Status Pin(grpc::ServerContext* /*context*/, const v1::PinRequest* request,
                   v1::PinResponse* reply) override {
    reply->set_previous_version(2);
    return Find(request->model(), request->version());
  }
  grpc::Status Unpin(grpc::ServerContext* /*context*/, const v1::UnpinRequest* request,
                     v1::UnpinResponse* reply) override {
    reply->set_version(2);
    return Find(request->model(), 2);
  }
  grpc::Status SetLabel(grpc::ServerContext* /*context*/, const v1::SetLabelRequest* request,
                        v1::SetLabelResponse* reply) override {
    reply->set_previous_version(std::exchange(labels[request->label()], request->version()));
    return Find(request->model(), 2);
  }
  grpc::Status DeleteVersion(grpc::ServerContext* /*context*/,
                             const v1::DeleteVersionRequest* request,
                             v1::DeleteVersionResponse* /*reply*/) override {
    return Find(request->model(), request->version());
  }

  std::map<std::string, int64_t> labels;

 private:
  static grpc::Status Find(const std::string& model, int64_t version) {
    return model == "m" && version == 2
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::NOT_FOUND, "no such version");
  }
};

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&inference_);
    builder.RegisterService(&devices_);
    builder.RegisterService(&models_);
    server_ = builder.BuildAndStart();
    auto client = Client::Connect(Target());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  std::string Target() const { return absl::StrCat("127.0.0.1:", port_); }

  int port_ = 0;
  FakeInference inference_;
  FakeDevices devices_;
  FakeModels models_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, InferSendsRawContentsAndReadsThem) {
  std::vector<Tensor> inputs = {MakeTensor<float>("x", {2, 1}, {1.5, 2.5}),
                                MakeTensor<int32_t>("ids", {2}, {3, 4})};
  absl::StatusOr<InferResult> result = client_->Infer("toy", std::move(inputs));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->model, "toy");
  EXPECT_EQ(result->version, "3");
  ASSERT_THAT(result->outputs, SizeIs(2));
  EXPECT_EQ(result->outputs[0].name, "y0");
  EXPECT_THAT(result->outputs[0].shape, ElementsAre(2, 1));
  EXPECT_THAT(*Values<float>(result->outputs[0]), ElementsAre(1.5, 2.5));
  EXPECT_THAT(*Values<int32_t>(result->outputs[1]), ElementsAre(3, 4));
  EXPECT_EQ(inference_.last_request.inputs(1).name(), "ids");
  EXPECT_EQ(inference_.last_request.model_version(), "");
  EXPECT_EQ(inference_.last_request.parameters_size(), 0);
}

TEST_F(ClientTest, ManagesVersions) {
  const auto versions = client_->ListVersions("m");
  ASSERT_TRUE(versions.ok()) << versions.status();
  ASSERT_THAT(*versions, SizeIs(1));
  EXPECT_EQ(versions->at(0).model(), "m");
  EXPECT_EQ(client_->ListVersions()->at(0).model(), "");
  EXPECT_EQ(*client_->Pin("m", 2), 2);
  EXPECT_TRUE(absl::IsNotFound(client_->Pin("m", 3).status()));
  EXPECT_EQ(*client_->Unpin("m"), 2);
  EXPECT_EQ(*client_->SetLabel("m", "stable", 2), 0);
  EXPECT_EQ(*client_->SetLabel("m", "stable", 0), 2);
  EXPECT_TRUE(client_->DeleteVersion("m", 2).ok());
  EXPECT_TRUE(absl::IsNotFound(client_->DeleteVersion("m", 3)));
}

TEST_F(ClientTest, InferSendsItsOptions) {
  inference_.split = "cpu:0=10,cuda:0/1=7";
  absl::StatusOr<InferResult> result = client_->Infer(
      "toy", {},
      {.version = "2", .outputs = {"b", "a"}, .timeout = absl::Hours(2), .report_split = true});
  ASSERT_TRUE(result.ok()) << result.status();
  const inference::ModelInferRequest& request = inference_.last_request;
  EXPECT_EQ(request.model_version(), "2");
  ASSERT_EQ(request.outputs_size(), 2);
  EXPECT_EQ(request.outputs(0).name(), "b");
  EXPECT_TRUE(request.parameters().at("report_split").bool_param());
  EXPECT_GT(inference_.last_deadline, absl::Now() + absl::Hours(1));
  EXPECT_LT(inference_.last_deadline, absl::Now() + absl::Hours(3));
  ASSERT_THAT(result->split, SizeIs(2));
  EXPECT_EQ(result->split[0].device(), "cpu:0");
  EXPECT_EQ(result->split[0].rows(), 10);
  EXPECT_EQ(result->split[1].device(), "cuda:0/1");
  EXPECT_EQ(result->split[1].rows(), 7);
}

TEST_F(ClientTest, ErrorsKeepCodeMessageAndDetails) {
  inference_.refusal = {grpc::StatusCode::NOT_FOUND, "model \"x\" is unknown", "details"};
  const absl::Status status = client_->Infer("x", {}).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "model \"x\" is unknown");
  EXPECT_TRUE(status.GetPayload("type.googleapis.com/google.rpc.Status").has_value());
}

TEST_F(ClientTest, InvalidRepliesAreInternalErrors) {
  inference_.send_raw = false;
  const std::vector<Tensor> input = {MakeTensor<float>("x", {1}, {1})};
  EXPECT_TRUE(absl::IsInternal(client_->Infer("toy", input).status()));
  inference_.send_raw = true;
  for (const char* split : {"cpu:0", "cpu:0=", "cpu:0=ten", "cpu:0=1,cpu:1"}) {
    inference_.split = split;
    EXPECT_TRUE(absl::IsInternal(client_->Infer("toy", input).status())) << split;
  }
}

TEST_F(ClientTest, AcceptsMessagesAboveFourMebibytes) {
  const std::vector<uint8_t> bytes(8 << 20, 7);
  absl::StatusOr<InferResult> result =
      client_->Infer("toy", {MakeTensor<uint8_t>("x", {8 << 20}, bytes)});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0].data.size(), bytes.size());
}

TEST_F(ClientTest, ListsModelsAndDevices) {
  auto models = client_->Models();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_THAT(*models, SizeIs(2));
  EXPECT_EQ((*models)[1].name(), "b");
  absl::StatusOr<v1::ListDevicesResponse> devices = client_->Devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(devices->devices(0).name(), "cpu:0");
  EXPECT_EQ(devices->uptime_seconds(), 5);
}

TEST_F(ClientTest, MissingMethodsAreUnimplemented) {
  EXPECT_TRUE(absl::IsUnimplemented(client_->ServerMetadata().status()));
  EXPECT_TRUE(absl::IsUnimplemented(client_->ModelMetadata("toy").status()));
  EXPECT_TRUE(absl::IsUnimplemented(client_->CreateTrainer({}).status()));
}

TEST_F(ClientTest, ConnectNamesTheUnreachableTarget) {
  client_.reset();
  server_->Shutdown();
  server_.reset();
  const absl::Status status = Client::Connect(Target()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("no server responds at ", Target())));
}

}  // namespace
}  // namespace braid::client
