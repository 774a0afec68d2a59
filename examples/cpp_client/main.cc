// Example of the C++ client library: trains a model of the server to classify rows.
//
//   braid-example-client HOST:PORT MODEL
//
// MODEL has one FP32 input [-1, FEATURES] and one FP32 output [-1, CLASSES], as an MLP has. The
// program infers on a batch, trains on it in a stream and deletes the trainer. It publishes
// nothing, so the served model stays as it is.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace {

using braid::client::Client;
using braid::client::InferResult;
using braid::client::LossResult;
using braid::client::MakeTensor;
using braid::client::Stream;
using braid::client::Tensor;
using braid::client::Trainer;

constexpr int64_t kRows = 64;
constexpr int kSteps = 20;
constexpr size_t kStepsInFlight = 4;

// Names of the input and the output, and their sizes without the batch.
struct Interface {
  std::string input;
  int64_t features = 0;
  std::string output;
  int64_t classes = 0;
};

struct Data {
  Tensor input;
  Tensor target;
};

absl::StatusOr<Interface> ReadInterface(Client& client, const std::string& model) {
  absl::StatusOr<inference::ModelMetadataResponse> metadata = client.ModelMetadata(model);
  if (!metadata.ok()) return metadata.status();
  const auto is_matrix = [](const auto& tensors) {
    return tensors.size() == 1 && tensors[0].shape_size() == 2 && tensors[0].shape(1) > 0;
  };
  if (!is_matrix(metadata->inputs()) || !is_matrix(metadata->outputs())) {
    return absl::InvalidArgumentError(
        "MODEL: not a classifier of rows (expected one input and one output of two dimensions)");
  }
  return Interface{metadata->inputs(0).name(), metadata->inputs(0).shape(1),
                   metadata->outputs(0).name(), metadata->outputs(0).shape(1)};
}

// Rows that differ from each other, and a class for each.
Data MakeData(const Interface& interface) {
  std::vector<float> values(static_cast<size_t>(kRows * interface.features));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  std::vector<int64_t> classes(static_cast<size_t>(kRows));
  for (int64_t row = 0; row < kRows; ++row) {
    classes[static_cast<size_t>(row)] = row % interface.classes;
  }
  return {MakeTensor<float>(interface.input, {kRows, interface.features}, values),
          MakeTensor<int64_t>("target", {kRows}, classes)};
}

absl::Status Infer(Client& client, const std::string& model, const Data& data) {
  absl::StatusOr<InferResult> result = client.Infer(model, {data.input}, {.report_split = true});
  if (!result.ok()) return result.status();
  std::cout << "version " << result->version << " of " << model << " on";
  for (const braid::v1::Chunk& chunk : result->split) {
    std::cout << " " << chunk.device() << " (" << chunk.rows() << " rows)";
  }
  std::cout << "\n";
  return absl::OkStatus();
}

absl::Status Train(Trainer& trainer, const Data& data) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = trainer.OpenStream({.depth = kStepsInFlight});
  if (!stream.ok()) return stream.status();
  std::deque<Stream::Future<LossResult>> losses;
  for (int step = 0; step < kSteps; ++step) {
    losses.push_back((*stream)->Step({data.input}, {data.target}));
  }
  for (Stream::Future<LossResult>& future : losses) {
    absl::StatusOr<LossResult> result = future.get();
    if (!result.ok()) return result.status();
    std::cout << "step " << result->status.step() << ": loss " << result->loss << "\n";
  }
  return (*stream)->Finish();
}

absl::Status Run(const std::string& address, const std::string& model) {
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  absl::StatusOr<Interface> interface = ReadInterface(**client, model);
  if (!interface.ok()) return interface.status();
  const Data data = MakeData(*interface);
  if (absl::Status status = Infer(**client, model, data); !status.ok()) return status;

  braid::v1::CreateTrainerRequest request;
  request.set_model(model);
  request.set_name("cpp-example");
  braid::v1::Loss& loss = *request.add_losses();
  loss.set_name("cross_entropy");
  loss.set_target("target");
  request.mutable_optimizer()->mutable_adamw()->set_lr(0.001);
  absl::StatusOr<Trainer> trainer = (*client)->CreateTrainer(request);
  if (!trainer.ok()) return trainer.status();
  absl::Status trained = Train(*trainer, data);
  absl::Status deleted = trainer->Delete();
  return trained.ok() ? deleted : trained;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: braid-example-client HOST:PORT MODEL\n";
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::cerr << "braid-example-client: " << status << "\n";
  return 1;
}
