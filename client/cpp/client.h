// Braid's C++ client: runs inference, manages the versions of models, and operates trainers.
//
//   auto client = braid::client::Client::Connect("127.0.0.1:8001");
//   if (!client.ok()) …
//   auto x = braid::client::MakeTensor<float>("x", {30, 5}, values);
//   absl::StatusOr<InferResult> result = (*client)->Infer("toy", {x});
//
// Methods block until the server replies. They report errors as absl::Status, with the server's
// code and message, and throw no exceptions. A request over 2 GiB is INVALID_ARGUMENT. Requests and
// replies without tensors are the messages of the protocol; the .proto files document them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "braid/v1/device.grpc.pb.h"
#include "braid/v1/model.grpc.pb.h"
#include "braid/v1/training.grpc.pb.h"
#include "client/cpp/call.h"
#include "client/cpp/security.h"
#include "client/cpp/tensor.h"
#include "client/cpp/trainer.h"
#include "grpcpp/channel.h"
#include "inference/grpc_service.grpc.pb.h"

namespace braid::client {

struct ClientOptions {
  // Limits each call, retries included. Default: no limit.
  absl::Duration timeout = absl::InfiniteDuration();
  // Limits Connect.
  absl::Duration connect_timeout = absl::Seconds(10);
  // Maximum number of attempts for a call of TrainingService. Only UNAVAILABLE is retried. 1 turns
  // retries off. The default bridges a server outage of about 7 seconds.
  int max_attempts = 8;
  // Pause before the first retry; it doubles up to 2 s.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  // How long streams, and operations of trainers with a checkpoint policy, wait for a server that
  // is down. Within this time `max_attempts` does not apply.
  absl::Duration restart_timeout = absl::Minutes(5);
  // TLS and token for Connect. Default: neither.
  Security security = {};
};

struct InferOptions {
  // Default: the newest version that is ready.
  std::string version = {};
  // Names of the outputs to return. Default: all.
  std::vector<std::string> outputs = {};
  // Default: ClientOptions::timeout.
  std::optional<absl::Duration> timeout = {};
  // Fills InferResult::split.
  bool report_split = false;
};

struct InferResult {
  std::string model;
  std::string version;
  std::vector<Tensor> outputs;
  // Device and number of rows of each chunk, in the order of the batch. Empty without
  // InferOptions::report_split.
  std::vector<v1::Chunk> split;
};

// A restored trainer and the checkpoint that it was restored from.
struct RestoredTrainer {
  Trainer trainer;
  v1::Checkpoint checkpoint;
};

// Connection to one server. Thread-safe.
class Client {
 public:
  // Opens a channel to `target` ("host:port") and checks that the server is live. Returns
  // UNAVAILABLE or DEADLINE_EXCEEDED if no server answers.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target,
                                                         const ClientOptions& options = {});

  // Uses the caller's channel, for example an in-process one or one with a load-balancing policy.
  // Set the channel's maximum receive size to receive messages over 4 MiB, gRPC's default limit.
  explicit Client(const std::shared_ptr<grpc::Channel>& channel, ClientOptions options = {});

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Runs the model on one batch. Move the inputs in to avoid a copy of their bytes. Not retried.
  absl::StatusOr<InferResult> Infer(const std::string& model, std::vector<Tensor> inputs,
                                    const InferOptions& options = {});

  // Lists every version of every model in the repository, with its state and the reason for it.
  absl::StatusOr<std::vector<inference::RepositoryIndexResponse::ModelIndex>> Models();
  absl::StatusOr<inference::ModelMetadataResponse> ModelMetadata(const std::string& model,
                                                                 const std::string& version = {});
  absl::StatusOr<inference::ServerMetadataResponse> ServerMetadata();
  absl::StatusOr<v1::ListDevicesResponse> Devices();

  // Creates a trainer on the server. `request` names the model, losses, optimizer and other
  // options; see training.proto. The trainer lives until Trainer::Delete, independently of this
  // client. Retried on UNAVAILABLE. Fills an empty `request_id` so that a retry creates no second
  // trainer.
  absl::StatusOr<Trainer> CreateTrainer(v1::CreateTrainerRequest request);

  // Attaches to an existing trainer in its current state. NOT_FOUND if no trainer has this name.
  absl::StatusOr<Trainer> AttachTrainer(const std::string& name);

  // Restores a trainer from a checkpoint (default: the newest) and attaches to it. Also restores an
  // expired trainer, which AttachTrainer and Trainers do not find. A running trainer loses every
  // operation after the checkpoint; its other clients then get errors. NOT_FOUND if there is no
  // such trainer or checkpoint.
  absl::StatusOr<RestoredTrainer> RestoreTrainer(const std::string& name,
                                                 const std::string& checkpoint = {});

  // Lists all trainers, sorted by name.
  absl::StatusOr<std::vector<v1::Trainer>> Trainers();

  // Makes the server serve an older version of a model. Returns the version served before.
  absl::StatusOr<int64_t> Rollback(const std::string& model, int64_t version);

  // Manage the versions of models; model.proto documents them. Those that return the version or the
  // label's version served before are not retried, because a retry would return another one.

  // Lists the versions of a model, or with an empty name of all models, by model and number.
  absl::StatusOr<std::vector<v1::ModelVersion>> ListVersions(const std::string& model = {});
  // Serves a version to requests without a version. Returns the version served before.
  absl::StatusOr<int64_t> Pin(const std::string& model, int64_t version);
  // Ends a pin. Returns the version that requests without a version get now.
  absl::StatusOr<int64_t> Unpin(const std::string& model);
  // Points a label at a version; version 0 removes the label. Returns the version that had the
  // label before; 0: none.
  absl::StatusOr<int64_t> SetLabel(const std::string& model, const std::string& label,
                                   int64_t version);
  // Deletes a version that was published or uploaded.
  absl::Status DeleteVersion(const std::string& model, int64_t version);

 private:
  Trainer MakeTrainer(v1::Trainer info) const;

  // Constant after construction. The stubs are thread-safe.
  const ClientOptions options_;
  const std::unique_ptr<inference::GRPCInferenceService::Stub> inference_;
  const std::unique_ptr<v1::ModelService::Stub> models_;
  const std::shared_ptr<v1::DeviceService::Stub> devices_;
  const std::shared_ptr<v1::TrainingService::Stub> training_;
};

}  // namespace braid::client
