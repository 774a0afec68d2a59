// Fixture with a FakeTrainingService and a client of it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_training_service.h"

namespace braid::client {

inline std::vector<Tensor> Rows(float value) {
  return {MakeTensor<float>("x", {1, 2}, {value, value + 1})};
}

class TrainerFixture : public ::testing::Test {
 protected:
  TrainerFixture() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.RegisterService(&uptime_);
    server_ = builder.BuildAndStart();
    MakeClient({.max_attempts = 3, .initial_backoff = absl::Milliseconds(1)});
  }

  void MakeClient(const ClientOptions& options) {
    client_ = std::make_unique<Client>(server_->InProcessChannel({}), options);
  }

  // Creates a trainer that writes a checkpoint every `every` operations; 0 means no policy.
  Trainer Create(int64_t every = 0) {
    v1::CreateTrainerRequest request;
    request.mutable_options()->mutable_checkpoints()->set_every_operations(every);
    absl::StatusOr<Trainer> trainer = client_->CreateTrainer(std::move(request));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return *std::move(trainer);
  }

  // Returns the history of steps on Rows(0), Rows(1), ….
  static std::vector<std::string> StepsInOrder(int count) {
    std::vector<std::string> history;
    for (int i = 0; i < count; ++i) history.push_back(absl::StrCat("step ", i + 1, " of ", i));
    return history;
  }

  FakeTrainingService service_;
  FakeUptime uptime_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace braid::client
