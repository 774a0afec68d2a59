#include "client/cpp/client.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cpp/channel.h"
#include "client/cpp/random_id.h"

namespace braid::client {
namespace {

using InferenceStub = inference::GRPCInferenceService::Stub;

CallPolicy OnePolicy(absl::Duration timeout) { return {.timeout = timeout, .max_attempts = 1}; }

CallPolicy ResendPolicy(const ClientOptions& options) {
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

// "cpu:0=10,cpu:1=10": a device name may hold anything but ',' and '='.
absl::StatusOr<std::vector<v1::Chunk>> ParseSplit(const std::string& split) {
  std::vector<v1::Chunk> chunks;
  for (absl::string_view part : absl::StrSplit(split, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> fields = absl::StrSplit(part, '=');
    int64_t rows = 0;
    if (!absl::SimpleAtoi(fields.second, &rows)) {
      return absl::InternalError(absl::StrCat("the server's split is \"", split, "\""));
    }
    v1::Chunk& chunk = chunks.emplace_back();
    chunk.set_device(std::string(fields.first));
    chunk.set_rows(rows);
  }
  return chunks;
}

absl::StatusOr<InferResult> Result(inference::ModelInferResponse reply) {
  if (reply.outputs_size() != reply.raw_output_contents_size()) {
    return absl::InternalError(absl::StrCat("the reply has ", reply.outputs_size(),
                                            " outputs, and the raw contents of ",
                                            reply.raw_output_contents_size()));
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
           OnePolicy(options.connect_timeout));
  if (!live.ok()) {
    return absl::Status(live.status().code(), absl::StrCat("no server answers at ", target, ": ",
                                                           live.status().message()));
  }
  return client;
}

Client::Client(const std::shared_ptr<grpc::Channel>& channel, ClientOptions options)
    : options_(std::move(options)),
      inference_(inference::GRPCInferenceService::NewStub(channel)),
      devices_(v1::DeviceService::NewStub(channel)),
      training_(v1::TrainingService::NewStub(channel)) {}

absl::StatusOr<InferResult> Client::Infer(const std::string& model, std::vector<Tensor> inputs,
                                          const InferOptions& options) {
  absl::StatusOr<inference::ModelInferResponse> reply =
      Call(*inference_, &InferenceStub::ModelInfer, InferRequest(model, std::move(inputs), options),
           OnePolicy(options.timeout.value_or(options_.timeout)));
  if (!reply.ok()) return reply.status();
  return Result(*std::move(reply));
}

absl::StatusOr<std::vector<inference::RepositoryIndexResponse::ModelIndex>> Client::Models() {
  absl::StatusOr<inference::RepositoryIndexResponse> reply =
      Call(*inference_, &InferenceStub::RepositoryIndex, inference::RepositoryIndexRequest(),
           OnePolicy(options_.timeout));
  if (!reply.ok()) return reply.status();
  return std::vector<inference::RepositoryIndexResponse::ModelIndex>(reply->models().begin(),
                                                                     reply->models().end());
}

absl::StatusOr<inference::ModelMetadataResponse> Client::ModelMetadata(const std::string& model,
                                                                       const std::string& version) {
  inference::ModelMetadataRequest request;
  request.set_name(model);
  request.set_version(version);
  return Call(*inference_, &InferenceStub::ModelMetadata, request, OnePolicy(options_.timeout));
}

absl::StatusOr<inference::ServerMetadataResponse> Client::ServerMetadata() {
  return Call(*inference_, &InferenceStub::ServerMetadata, inference::ServerMetadataRequest(),
              OnePolicy(options_.timeout));
}

absl::StatusOr<v1::ListDevicesResponse> Client::Devices() {
  return Call(*devices_, &v1::DeviceService::Stub::ListDevices, v1::ListDevicesRequest(),
              OnePolicy(options_.timeout));
}

absl::StatusOr<Trainer> Client::CreateTrainer(v1::CreateTrainerRequest request) {
  if (request.request_id().empty()) request.set_request_id(RandomId());
  absl::StatusOr<v1::CreateTrainerResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::CreateTrainer, request, ResendPolicy(options_));
  if (!reply.ok()) return reply.status();
  return MakeTrainer(std::move(*reply->mutable_trainer()));
}

absl::StatusOr<Trainer> Client::AttachTrainer(const std::string& name) {
  v1::GetTrainerRequest request;
  request.set_name(name);
  absl::StatusOr<v1::GetTrainerResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::GetTrainer, request, ResendPolicy(options_));
  if (!reply.ok()) return reply.status();
  return MakeTrainer(std::move(*reply->mutable_trainer()));
}

absl::StatusOr<RestoredTrainer> Client::RestoreTrainer(const std::string& name,
                                                       const std::string& checkpoint) {
  v1::RestoreCheckpointRequest request;
  request.set_trainer(name);
  request.set_checkpoint(checkpoint);
  absl::StatusOr<v1::RestoreCheckpointResponse> reply = Call(
      *training_, &v1::TrainingService::Stub::RestoreCheckpoint, request, ResendPolicy(options_));
  if (!reply.ok()) return reply.status();
  return RestoredTrainer{MakeTrainer(std::move(*reply->mutable_trainer())),
                         std::move(*reply->mutable_checkpoint())};
}

absl::StatusOr<std::vector<v1::Trainer>> Client::Trainers() {
  absl::StatusOr<v1::ListTrainersResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::ListTrainers, v1::ListTrainersRequest(),
           ResendPolicy(options_));
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Trainer>(reply->trainers().begin(), reply->trainers().end());
}

absl::StatusOr<int64_t> Client::Rollback(const std::string& model, int64_t version) {
  v1::RollbackRequest request;
  request.set_model(model);
  request.set_version(version);
  absl::StatusOr<v1::RollbackResponse> reply =
      Call(*training_, &v1::TrainingService::Stub::Rollback, request, ResendPolicy(options_));
  if (!reply.ok()) return reply.status();
  return reply->previous_version();
}

Trainer Client::MakeTrainer(v1::Trainer info) const {
  auto handle = std::make_shared<Handle>(Handle::Stubs{training_, devices_}, info,
                                         ResendPolicy(options_), options_.restart_timeout);
  return Trainer(std::move(handle), std::move(info));
}

}  // namespace braid::client
