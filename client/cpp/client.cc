#include "client/cpp/client.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cpp/random_id.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/client_interceptor.h"

namespace braid::client {
namespace {

using InferenceStub = inference::GRPCInferenceService::Stub;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

// Adds the token to each call's metadata. gRPC's call credentials require TLS, but a server on
// loopback, or behind a proxy that terminates TLS, is reached in plaintext.
class TokenInterceptor final : public Interceptor {
 public:
  explicit TokenInterceptor(std::string value) : value_(std::move(value)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string value_;
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const std::string& token)
      : value_(absl::StrCat("Bearer ", token)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override {
    return new TokenInterceptor(value_);
  }

 private:
  const std::string value_;
};

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const Security& security) {
  if (!security.tls) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security.tls->ca;
  options.pem_cert_chain = security.tls->certificate;
  options.pem_private_key = security.tls->key;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const Security& security) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // At most the pauses between attempts, so that each attempt finds the channel reconnecting.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // The client retries by itself. gRPC's own retries can lose a call that starts while the server
  // closes the connection: it never ends, not even at its deadline.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!security.token.empty()) {
    interceptors.push_back(std::make_unique<TokenInterceptorFactory>(security.token));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, MakeCredentials(security), arguments, std::move(interceptors));
}

CallPolicy SingleAttempt(absl::Duration timeout) { return {.timeout = timeout, .max_attempts = 1}; }

CallPolicy RetryPolicy(const ClientOptions& options) {
  return {.timeout = options.timeout,
          .max_attempts = options.max_attempts,
          .initial_backoff = options.initial_backoff};
}

inference::ModelInferRequest InferRequest(const std::string& model, std::vector<Tensor> inputs,
                                          const InferOptions& options) {
  inference::ModelInferRequest request;
  request.set_model_name(model);
  request.set_model_version(options.version);
  if (options.report_split) (*request.mutable_parameters())["report_split"].set_bool_param(true);
  for (Tensor& input : inputs) {
    auto* tensor = request.add_inputs();
    tensor->set_name(std::move(input.name));
    tensor->set_datatype(std::move(input.datatype));
    tensor->mutable_shape()->Assign(input.shape.begin(), input.shape.end());
    request.add_raw_input_contents(std::move(input.data));
  }
  for (const std::string& output : options.outputs) request.add_outputs()->set_name(output);
  return request;
}

// Parses "cpu:0=10,cpu:1=10". A device name contains neither ',' nor '='.
absl::StatusOr<std::vector<v1::Chunk>> ParseSplit(const std::string& split) {
  std::vector<v1::Chunk> chunks;
  for (absl::string_view part : absl::StrSplit(split, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> fields = absl::StrSplit(part, '=');
    int64_t rows = 0;
    if (!absl::SimpleAtoi(fields.second, &rows)) {
      return absl::InternalError(
          absl::StrCat("split: invalid value '", split, "' (expected device=rows,…)"));
    }
    v1::Chunk& chunk = chunks.emplace_back();
    chunk.set_device(std::string(fields.first));
    chunk.set_rows(rows);
  }
  return chunks;
}

absl::StatusOr<InferResult> Result(inference::ModelInferResponse reply) {
  if (reply.outputs_size() != reply.raw_output_contents_size()) {
    return absl::InternalError(absl::StrCat("reply: ", reply.outputs_size(), " outputs but ",
                                            reply.raw_output_contents_size(),
                                            " raw_output_contents (expected equal numbers)"));
  }
  InferResult result{reply.model_name(), reply.model_version(), {}, {}};
  for (int i = 0; i < reply.outputs_size(); ++i) {
    auto* output = reply.mutable_outputs(i);
    result.outputs.push_back({std::move(*output->mutable_name()),
                              std::move(*output->mutable_datatype()),
                              {output->shape().begin(), output->shape().end()},
                              std::move(*reply.mutable_raw_output_contents(i))});
  }
  if (auto split = reply.parameters().find("split"); split != reply.parameters().end()) {
    absl::StatusOr<std::vector<v1::Chunk>> chunks = ParseSplit(split->second.string_param());
    if (!chunks.ok()) return chunks.status();
    result.split = *std::move(chunks);
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target,
                                                        const ClientOptions& options) {
  auto client = std::make_unique<Client>(MakeChannel(target, options.security), options);
  absl::StatusOr<inference::ServerLiveResponse> live =
      Call(*client->inference_, &InferenceStub::ServerLive, inference::ServerLiveRequest(),
           SingleAttempt(options.connect_timeout));
  if (!live.ok()) {
    return absl::Status(live.status().code(), absl::StrCat("no server responds at ", target, ": ",
                                                           live.status().message()));
  }
  return client;
}

Client::Client(const std::shared_ptr<grpc::Channel>& channel, ClientOptions options)
    : options_(std::move(options)),
      inference_(inference::GRPCInferenceService::NewStub(channel)),
      models_(v1::ModelService::NewStub(channel)),
      devices_(v1::DeviceService::NewStub(channel)),
      training_(v1::TrainingService::NewStub(channel)) {}

absl::StatusOr<InferResult> Client::Infer(const std::string& model, std::vector<Tensor> inputs,
                                          const InferOptions& options) {
  absl::StatusOr<inference::ModelInferResponse> reply =
      Call(*inference_, &InferenceStub::ModelInfer, InferRequest(model, std::move(inputs), options),
           SingleAttempt(options.timeout.value_or(options_.timeout)));
  if (!reply.ok()) return reply.status();
  return Result(*std::move(reply));
}

absl::StatusOr<std::vector<inference::RepositoryIndexResponse::ModelIndex>> Client::Models() {
  absl::StatusOr<inference::RepositoryIndexResponse> reply =
      Call(*inference_, &InferenceStub::RepositoryIndex, inference::RepositoryIndexRequest(),
           SingleAttempt(options_.timeout));
  if (!reply.ok()) return reply.status();
  return std::vector<inference::RepositoryIndexResponse::ModelIndex>(reply->models().begin(),
                                                                     reply->models().end());
}

absl::StatusOr<inference::ModelMetadataResponse> Client::ModelMetadata(const std::string& model,
                                                                       const std::string& version) {
  inference::ModelMetadataRequest request;
  request.set_name(model);
  request.set_version(version);
  return Call(*inference_, &InferenceStub::ModelMetadata, request, SingleAttempt(options_.timeout));
}

absl::StatusOr<inference::ServerMetadataResponse> Client::ServerMetadata() {
  return Call(*inference_, &InferenceStub::ServerMetadata, inference::ServerMetadataRequest(),
              SingleAttempt(options_.timeout));
}

absl::StatusOr<v1::ListDevicesResponse> Client::Devices() {
  return Call(*devices_, &v1::DeviceService::Stub::ListDevices, v1::ListDevicesRequest(),
              SingleAttempt(options_.timeout));
}

absl::StatusOr<Trainer> Client::CreateTrainer(v1::CreateTrainerRequest request) {
  if (request.request_id().empty()) request.set_request_id(RandomId());
  absl::StatusOr<v1::CreateTrainerResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::CreateTrainer, request, RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return MakeTrainer(std::move(*reply->mutable_trainer()));
}

absl::StatusOr<Trainer> Client::AttachTrainer(const std::string& name) {
  v1::GetTrainerRequest request;
  request.set_name(name);
  absl::StatusOr<v1::GetTrainerResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::GetTrainer, request, RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return MakeTrainer(std::move(*reply->mutable_trainer()));
}

absl::StatusOr<RestoredTrainer> Client::RestoreTrainer(const std::string& name,
                                                       const std::string& checkpoint) {
  v1::RestoreCheckpointRequest request;
  request.set_trainer(name);
  request.set_checkpoint(checkpoint);
  absl::StatusOr<v1::RestoreCheckpointResponse> reply = Call(
      *training_, &v1::TrainingService::Stub::RestoreCheckpoint, request, RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return RestoredTrainer{MakeTrainer(std::move(*reply->mutable_trainer())),
                         std::move(*reply->mutable_checkpoint())};
}

absl::StatusOr<std::vector<v1::Trainer>> Client::Trainers() {
  absl::StatusOr<v1::ListTrainersResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::ListTrainers, v1::ListTrainersRequest(),
           RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Trainer>(reply->trainers().begin(), reply->trainers().end());
}

absl::StatusOr<int64_t> Client::Rollback(const std::string& model, int64_t version) {
  v1::RollbackRequest request;
  request.set_model(model);
  request.set_version(version);
  absl::StatusOr<v1::RollbackResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::Rollback, request, RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return reply->previous_version();
}

absl::StatusOr<std::vector<v1::ModelVersion>> Client::ListVersions(const std::string& model) {
  v1::ListVersionsRequest request;
  request.set_model(model);
  absl::StatusOr<v1::ListVersionsResponse> reply =
      Call(*models_, &v1::ModelService::Stub::ListVersions, request, RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return std::vector<v1::ModelVersion>(reply->versions().begin(), reply->versions().end());
}

absl::StatusOr<int64_t> Client::Pin(const std::string& model, int64_t version) {
  v1::PinRequest request;
  request.set_model(model);
  request.set_version(version);
  absl::StatusOr<v1::PinResponse> reply =
      Call(*models_, &v1::ModelService::Stub::Pin, request, SingleAttempt(options_.timeout));
  if (!reply.ok()) return reply.status();
  return reply->previous_version();
}

absl::StatusOr<int64_t> Client::Unpin(const std::string& model) {
  v1::UnpinRequest request;
  request.set_model(model);
  absl::StatusOr<v1::UnpinResponse> reply =
      Call(*models_, &v1::ModelService::Stub::Unpin, request, RetryPolicy(options_));
  if (!reply.ok()) return reply.status();
  return reply->version();
}

absl::StatusOr<int64_t> Client::SetLabel(const std::string& model, const std::string& label,
                                         int64_t version) {
  v1::SetLabelRequest request;
  request.set_model(model);
  request.set_label(label);
  request.set_version(version);
  absl::StatusOr<v1::SetLabelResponse> reply =
      Call(*models_, &v1::ModelService::Stub::SetLabel, request, SingleAttempt(options_.timeout));
  if (!reply.ok()) return reply.status();
  return reply->previous_version();
}

absl::Status Client::DeleteVersion(const std::string& model, int64_t version) {
  v1::DeleteVersionRequest request;
  request.set_model(model);
  request.set_version(version);
  return Call(*models_, &v1::ModelService::Stub::DeleteVersion, request,
              SingleAttempt(options_.timeout))
      .status();
}

Trainer Client::MakeTrainer(v1::Trainer info) const {
  auto handle = std::make_shared<Handle>(Handle::Stubs{training_, devices_}, info,
                                         RetryPolicy(options_), options_.restart_timeout);
  return Trainer(std::move(handle), std::move(info));
}

}  // namespace braid::client
