// A registry of trainers over a bench.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/training/trainer/trainer_registry.h"
#include "server/training/trainer/trainer_storage.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/trainer_bench.h"

namespace braid {

// Model "m" on two workers. Start() again is a restart of the server.
class RegistryTest : public ::testing::Test {
 protected:
  static constexpr size_t kMost = 8;

  // Empty: trainers live in memory.
  explicit RegistryTest(std::string data_dir) : data_dir_(std::move(data_dir)) { Start(); }

  void Start() {
    Stop();
    bench_.emplace(Mlp(), /*workers=*/2, data_dir_);
    bench_->KeepJournals(read_operation_);
    std::unique_ptr<TrainerStorage> storage;
    if (!data_dir_.empty()) {
      auto opened = TrainerStorage::Open(data_dir_);
      ASSERT_TRUE(opened.ok()) << opened.status();
      storage = *std::move(opened);
    }
    TrainerServices services = bench_->services();
    services.memory = memory_;
    registry_.emplace(
        services, std::move(storage),
        [this](const std::string& request) -> absl::StatusOr<TrainerSpec> {
          const auto found = requests_.find(request);
          if (found == requests_.end()) {
            return absl::DataLossError("no request");
          }
          return found->second;
        },
        most_);
  }
  void Stop() {
    registry_.reset();
    bench_.reset();
  }

  absl::StatusOr<TrainerInfo> Create(const TrainerSpec& spec) {
    const std::string request = "request of " + spec.name;
    requests_[request] = spec;
    Pending<absl::StatusOr<CreatedTrainer>> pending;
    registry_->Create(spec, request, pending.done());
    BRAID_ASSIGN_OR_RETURN(const CreatedTrainer created, pending.Wait());
    return created.info;
  }
  absl::Status Delete(const std::string& name) {
    Pending<absl::Status> pending;
    registry_->Delete(name, pending.done());
    return pending.Wait();
  }
  absl::StatusOr<OperationResult> Do(const std::string& name, Operation operation) {
    PendingOperation pending;
    registry_->Submit(name, std::move(operation), pending.done());
    return pending.Wait();
  }
  absl::StatusOr<TrainerInfo> Get(const std::string& name) {
    Pending<absl::StatusOr<TrainerInfo>> pending;
    registry_->Get(name, pending.done());
    return pending.Wait();
  }
  absl::StatusOr<std::vector<CheckpointInfo>> Checkpoints(const std::string& name) {
    Pending<absl::StatusOr<std::vector<CheckpointInfo>>> pending;
    registry_->ListCheckpoints(name, pending.done());
    return pending.Wait();
  }
  absl::StatusOr<CheckpointInfo> Save(const std::string& name) {
    Pending<absl::StatusOr<CheckpointInfo>> pending;
    registry_->SaveCheckpoint(name, pending.done());
    return pending.Wait();
  }
  absl::StatusOr<CheckpointInfo> RestoreCheckpoint(const std::string& name,
                                                   const std::string& checkpoint = "") {
    Pending<absl::StatusOr<CheckpointInfo>> pending;
    registry_->RestoreCheckpoint(name, checkpoint, pending.done());
    return pending.Wait();
  }
  static TrainerSpec Named(const std::string& name) {
    TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
    spec.name = name;
    return spec;
  }

  TrainerRegistry& registry() { return *registry_; }
  TrainerBench& bench() { return *bench_; }

  // Arguments of the next Start().
  std::map<std::string, int64_t> memory_;  // TrainerServices::memory
  RequestReader read_operation_;           // nullptr: no journals
  size_t most_ = kMost;
  // By what Create() stored of them.
  std::map<std::string, TrainerSpec> requests_;

 private:
  const std::string data_dir_;
  std::optional<TrainerBench> bench_;
  std::optional<TrainerRegistry> registry_;
};

class WithDataDirectory {
 protected:
  const TempDir dir_;
};

// With a data directory.
class StoredRegistryTest : protected WithDataDirectory, public RegistryTest {
 protected:
  StoredRegistryTest() : RegistryTest(dir_.path().string()) {}
};

}  // namespace braid
