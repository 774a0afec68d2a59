// Braid's C++ client: inference, and trainers that live on the server.
//
//   auto client = braid::client::Client::Connect("127.0.0.1:8001");
//   if (!client.ok()) …
//   auto x = braid::client::MakeTensor<float>("x", {30, 5}, values);
//   absl::StatusOr<InferResult> result = (*client)->Infer("toy", {x});
//
// Errors are the server's: its status code and its message, as absl::Status; no exceptions. A
// request larger than 2 GiB is INVALID_ARGUMENT. What carries no tensor is the protocol's own
// message, so that proto/ documents it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "braid/v1/device.grpc.pb.h"
#include "braid/v1/training.grpc.pb.h"
#include "client/cpp/call.h"
#include "client/cpp/security.h"
#include "client/cpp/tensor.h"
#include "client/cpp/trainer.h"
#include "grpcpp/channel.h"
#include "inference/grpc_service.grpc.pb.h"

namespace braid::client {

struct ClientOptions {
  // For each call, resending included. Default: none.
  absl::Duration timeout = absl::InfiniteDuration();
  // For Connect.
  absl::Duration connect_timeout = absl::Seconds(10);
  // How often a call of TrainingService is sent, at most, while the answer is UNAVAILABLE. 1: never
  // again. With the default, a server that is away for 7 seconds goes unnoticed.
  int max_attempts = 8;
  // The pause before the second attempt; it doubles up to 2 s.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  // How long a server that is away is waited for by streams, and by operations of trainers with a
  // checkpoint policy, however many attempts that takes.
  absl::Duration restart_timeout = absl::Minutes(5);
  // For Connect: TLS and a token. Default: neither.
  Security security = {};
};

struct InferOptions {
  // Default: the newest version that is served.
  std::string version = {};
  // Names of the outputs wanted. Default: all.
  std::vector<std::string> outputs = {};
  // Default: the client's.
  std::optional<absl::Duration> timeout = {};
  // Fills InferResult::split.
  bool report_split = false;
};

struct InferResult {
  std::string model;
  std::string version;
  std::vector<Tensor> outputs;
  // Which device computed how many rows, in the batch's order.
  std::vector<v1::Chunk> split;
};

// A trainer, and the checkpoint that it stands at.
struct RestoredTrainer {
  Trainer trainer;
  v1::Checkpoint checkpoint;
};

// Thread-safe.
class Client {
 public:
  // Opens a channel to `target`, "host:port", and asks the server whether it is alive.
  // UNAVAILABLE or DEADLINE_EXCEEDED if nothing answers there.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target,
                                                         const ClientOptions& options = {});

  // Over a channel of the caller's own: a load-balancing policy, in-process. For messages
  // beyond gRPC's 4 MiB its maximum receive size must be set.
  explicit Client(const std::shared_ptr<grpc::Channel>& channel, ClientOptions options = {});

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Runs the model on one batch. Pass the inputs with std::move: their bytes are not copied then.
  // Not sent again on UNAVAILABLE.
  absl::StatusOr<InferResult> Infer(const std::string& model, std::vector<Tensor> inputs,
                                    const InferOptions& options = {});

  // Every version of every model in the repository, with its state and why it is so.
  absl::StatusOr<std::vector<inference::RepositoryIndexResponse::ModelIndex>> Models();
  absl::StatusOr<inference::ModelMetadataResponse> ModelMetadata(const std::string& model,
                                                                 const std::string& version = {});
  absl::StatusOr<inference::ServerMetadataResponse> ServerMetadata();
  absl::StatusOr<v1::ListDevicesResponse> Devices();

  // Creates a trainer on the server: `request` says from which model, with which losses, optimizer
  // and other options, as training.proto documents them. It lives there until Trainer::Delete,
  // whatever becomes of this client. Sent again on UNAVAILABLE; `request_id`, if empty, is filled
  // for that.
  absl::StatusOr<Trainer> CreateTrainer(v1::CreateTrainerRequest request);

  // A trainer that exists, from where it stands. NOT_FOUND if there is none of this name.
  absl::StatusOr<Trainer> AttachTrainer(const std::string& name);

  // A trainer, from where a checkpoint of it stands. Default: the newest. Brings back one that has
  // expired, which AttachTrainer and Trainers do not find; one that is at work loses what came
  // after the checkpoint, and its other clients notice. NOT_FOUND if there is no such trainer or
  // checkpoint.
  absl::StatusOr<RestoredTrainer> RestoreTrainer(const std::string& name,
                                                 const std::string& checkpoint = {});

  // All trainers, by name.
  absl::StatusOr<std::vector<v1::Trainer>> Trainers();

  // Has a model serve an older version again; returns the one that was served before.
  absl::StatusOr<int64_t> Rollback(const std::string& model, int64_t version);

 private:
  Trainer MakeTrainer(v1::Trainer info) const;

  // Immutable; the stubs are thread-safe.
  const ClientOptions options_;
  const std::unique_ptr<inference::GRPCInferenceService::Stub> inference_;
  const std::shared_ptr<v1::DeviceService::Stub> devices_;
  const std::shared_ptr<v1::TrainingService::Stub> training_;
};

}  // namespace braid::client
