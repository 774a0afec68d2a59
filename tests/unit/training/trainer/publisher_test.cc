// Trainers' versions: published once each, found again after a restart, gone back from.
#include "server/training/trainer/publisher.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/model_files.h"
#include "server/storage/sealed_directory.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/trainer_bench.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Model "m", version 1 of the repository, with a trainer and its checkpoints.
class Server {
 public:
  Server(const TempDir& repository, const std::string& data_dir)
      : bench_(Mlp(), /*workers=*/2, data_dir, repository.path().string()),
        trainer_(bench_.MustCreate(TrainedSpec(SgdSpec{.lr = 0.1}))) {}

  Trainer& trainer() { return *trainer_; }
  Publisher& publisher() { return *bench_.publisher(); }
  ServedModels& models() { return *bench_.models(); }
  int64_t Labelled(const std::string& label) {
    return (*bench_.models()->FindLabel("m", label))->version();
  }
  // Returns the entry of a version in the list.
  VersionInfo Version(int64_t version) {
    const auto versions = publisher().ListVersions("m");
    EXPECT_THAT(versions, IsOk());
    for (const VersionInfo& info : *versions) {
      if (info.version == version) {
        return info;
      }
    }
    return {};
  }
  int64_t served() { return (*bench_.models()->Find("m", 0))->version(); }
  at::Tensor Infer() {
    const auto result = bench_.Infer(4);
    EXPECT_THAT(result, IsOk());
    return at::tensor(ValuesOf<double>(result->outputs[0]));
  }
  // Publishes, and waits until the version is durable.
  absl::StatusOr<int64_t> Publish(int64_t sequence) {
    Operation operation = braid::Publish(sequence);
    operation.wait_durable = true;
    BRAID_ASSIGN_OR_RETURN(const OperationResult result, Do(*trainer_, std::move(operation)));
    return result.version;
  }
  // Publishes the initial weights as operation `sequence` of another trainer, with `files`.
  absl::StatusOr<int64_t> PublishFiles(int64_t sequence, std::vector<NewFile> files) {
    VersionOrigin origin;
    origin.trainer = "other";
    origin.trainer_id = "other-id";
    origin.sequence = sequence;
    return Publish(origin, MakeReplicas(Mlp(), TrainedConfig(), models().workers().size()),
                   std::move(files));
  }
  // Publishes puppets without files as operation `sequence` of another trainer.
  absl::StatusOr<int64_t> PublishPuppets(int64_t sequence, const PuppetReplica::Function& forward) {
    VersionOrigin origin;
    origin.trainer = "other";
    origin.trainer_id = "other-id";
    origin.sequence = sequence;
    return Publish(origin, Puppets(bench_.fleet(), forward), {});
  }
  // Loads version 1 again, with another configuration.
  void Reload(const ModelConfig& config) {
    models().Serve(
        {config, 1,
         ReplicaSet(models().workers(), MakeReplicas(Mlp(), config, models().workers().size()))});
  }
  Durability StateOfFiles(int64_t version) {
    return publisher().DurabilityOf("m", version).durability;
  }
  void Step(int64_t sequence, int64_t rows = 20) {
    ASSERT_THAT(Do(*trainer_, BatchOperation(sequence, rows)), IsOk());
  }

 private:
  absl::StatusOr<int64_t> Publish(const VersionOrigin& origin,
                                  std::vector<std::unique_ptr<Replica>> replicas,
                                  std::vector<NewFile> files) {
    return publisher().Publish(TrainedConfig(), ReplicaSet(models().workers(), std::move(replicas)),
                               origin, std::move(files), /*must_write=*/false);
  }

  TrainerBench bench_;
  std::unique_ptr<Trainer> trainer_;
};

// Forward pass that waits until Release().
class SlowForward {
 public:
  explicit SlowForward(bool mixes_rows = false) : mixes_rows_(mixes_rows) {}

  PuppetReplica::Function function() {
    return [this](const std::vector<at::Tensor>& inputs) {
      ++calls_;
      released_.WaitForNotification();
      const at::Tensor x = mixes_rows_ ? inputs[0] - inputs[0].mean() : inputs[0];
      return std::vector<at::Tensor>{x.matmul(at::ones({x.size(1), 4}, x.scalar_type()))};
    };
  }
  void Release() { released_.Notify(); }
  int calls() const { return calls_; }

 private:
  const bool mixes_rows_;
  std::atomic<int> calls_ = 0;
  absl::Notification released_;
};

class PublisherTest : public ::testing::Test {
 protected:
  PublisherTest() {
    std::filesystem::create_directories(repository_.path() / "m/1");
    Mlp().save((repository_.path() / "m/1/model.pt").string());
  }
  std::unique_ptr<Server> Start() {
    return std::make_unique<Server>(repository_, data_.path().string());
  }
  std::unique_ptr<Server> StartInMemory() { return std::make_unique<Server>(repository_, ""); }

  // Adds a version to the repository.
  void Export(int64_t version) {
    const std::filesystem::path model = repository_.path() / "m";
    std::filesystem::copy(model / "1", model / absl::StrCat(version),
                          std::filesystem::copy_options::recursive);
  }

  const TempDir repository_;
  const TempDir data_;
};

TEST_F(PublisherTest, EachVersionServesItsWeights) {
  for (const auto& server : {Start(), StartInMemory()}) {
    const at::Tensor first = server->Infer();
    server->Step(1);
    EXPECT_EQ(*server->Publish(2), 2);
    EXPECT_EQ(server->served(), 2);
    const at::Tensor second = server->Infer();
    EXPECT_FALSE(at::equal(second, first));
    server->Step(3);
    EXPECT_TRUE(at::equal(server->Infer(), second));  // until it is published
    EXPECT_EQ(*server->Publish(4), 3);
    EXPECT_FALSE(at::equal(server->Infer(), second));
    const auto origin = (*server->models().Find("m", 3))->config().origin;
    EXPECT_EQ(origin.at("trainer"), "t");
    EXPECT_EQ(origin.at("step"), "2");
    EXPECT_EQ(origin.at("sequence"), "4");
  }
}

TEST_F(PublisherTest, VersionsUseTheTrainersMemoryUntilItsNextUpdate) {
  const auto server = Start();
  // Keeps a version in memory after another one has replaced it.
  const auto published = [&](int64_t sequence) {
    return *server->models().FindReplicas("m", *server->Publish(sequence));
  };
  const auto weight = [](const std::shared_ptr<BatchQueue>& version, size_t r) {
    return version->replicas().replica(r).state().front().value;
  };
  server->Step(1);
  const std::shared_ptr<BatchQueue> first = published(2);
  const std::shared_ptr<BatchQueue> second = published(3);
  const void* memory = weight(first, 0).const_data_ptr();
  EXPECT_EQ(weight(first, 1).const_data_ptr(), memory);
  EXPECT_EQ(weight(second, 0).const_data_ptr(), memory);
  const at::Tensor before = weight(first, 0).clone();
  server->Step(4);
  const std::shared_ptr<BatchQueue> third = published(5);
  EXPECT_NE(weight(third, 0).const_data_ptr(), memory);
  EXPECT_FALSE(at::equal(weight(third, 0), before));
  EXPECT_TRUE(at::equal(weight(first, 0), before));
}

TEST_F(PublisherTest, VersionsKeepTheirValuesWhenTheTrainerRestoresACheckpoint) {
  const auto server = Start();
  ASSERT_THAT(Save(server->trainer()), IsOk());
  server->Step(1);
  const std::shared_ptr<BatchQueue> version =
      *server->models().FindReplicas("m", *server->Publish(2));
  const at::Tensor weight = version->replicas().replica(0).state().front().value;
  const at::Tensor before = weight.clone();
  ASSERT_THAT(Restore(server->trainer()), IsOk());
  EXPECT_TRUE(at::equal(weight, before));
}

// Files of versions that are written once unblocked.
class BlockedFiles {
 public:
  ~BlockedFiles() { Unblock(); }
  std::vector<NewFile> Make() {
    return {{kTorchScriptFile, [state = state_](ByteSink* sink) {
               state->WaitForNotification();
               return sink->Write("weights");
             }}};
  }
  void Unblock() {
    if (!state_->HasBeenNotified()) {
      state_->Notify();
    }
  }

 private:
  const std::shared_ptr<absl::Notification> state_ = std::make_shared<absl::Notification>();
};

TEST_F(PublisherTest, ServesAVersionWhileItIsWritten) {
  const auto server = Start();
  BlockedFiles files;
  EXPECT_EQ(*server->PublishFiles(1, files.Make()), 2);
  EXPECT_EQ(server->served(), 2);
  EXPECT_EQ(*(*server->models().Find("m", 2))->config().durability, Durability::kPending);
  const VersionInfo pending = server->Version(2);
  EXPECT_EQ(pending.durability.durability, Durability::kPending);
  EXPECT_EQ(pending.trainer, "other");
  EXPECT_TRUE(pending.serving);
  files.Unblock();
  EXPECT_EQ(server->publisher().WaitForDurability("m", 2).durability, Durability::kDurable);
  EXPECT_EQ(*(*server->models().Find("m", 2))->config().durability, Durability::kDurable);
  EXPECT_EQ(server->Version(2).durability.durability, Durability::kDurable);
}

TEST_F(PublisherTest, ServesAVersionWithoutMergingUntilItsRowsAreTested) {
  for (const bool mixes_rows : {false, true}) {
    SlowForward slow(mixes_rows);
    const auto server = StartInMemory();
    EXPECT_EQ(*server->PublishPuppets(1, slow.function()), 2);
    EXPECT_EQ(server->served(), 2);
    const std::shared_ptr<BatchQueue> untested = *server->models().FindReplicas("m", 2);
    EXPECT_TRUE(untested->config().has_independent_rows());
    EXPECT_FALSE(untested->config().merges_requests());
    slow.Release();
    server->Infer();
    const std::shared_ptr<BatchQueue> tested = *server->publisher().FindOrLoad("m", 2);
    EXPECT_EQ(tested, *server->models().FindReplicas("m", 2));
    EXPECT_EQ(tested->config().merges_requests(), !mixes_rows);
    EXPECT_EQ(tested->config().row_independence,
              mixes_rows ? RowIndependence::kDependent : RowIndependence::kProven);
    EXPECT_EQ(tested->config().origin.at("trainer"), "other");
    EXPECT_EQ(&tested->replicas(), &untested->replicas());
    server->Infer();
    EXPECT_EQ(tested->statistics().counts().success.count, 2);
  }
}

TEST_F(PublisherTest, APublicationWaitsUntilTheVersionBeforeIsTested) {
  SlowForward slow;
  SlowForward fast;
  fast.Release();
  const auto server = StartInMemory();
  EXPECT_EQ(*server->PublishPuppets(1, slow.function()), 2);
  absl::Notification published;
  std::thread publisher([&] {
    EXPECT_EQ(*server->PublishPuppets(2, fast.function()), 3);
    published.Notify();
  });
  EXPECT_FALSE(published.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  EXPECT_EQ(server->served(), 2);
  slow.Release();
  publisher.join();
  EXPECT_GT(slow.calls(), 1);
  EXPECT_TRUE((*server->publisher().FindOrLoad("m", 3))->config().merges_requests());
}

TEST_F(PublisherTest, OrderedRepliesWaitForTheTest) {
  SlowForward slow;
  const auto server = StartInMemory();
  ModelConfig config = TrainedConfig();
  config.preserve_ordering = true;
  server->Reload(config);
  absl::Notification published;
  std::thread publisher([&] {
    EXPECT_EQ(*server->PublishPuppets(1, slow.function()), 2);
    published.Notify();
  });
  EXPECT_FALSE(published.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  EXPECT_EQ(server->served(), 1);
  slow.Release();
  publisher.join();
  EXPECT_TRUE((*server->models().Find("m", 2))->config().merges_requests());
}

TEST_F(PublisherTest, AVersionWhoseTestFailsLateRunsRequestsAlone) {
  absl::Notification released;
  const auto server = StartInMemory();
  // Outputs of another shape than the configuration states.
  const auto forward = [&](const std::vector<at::Tensor>& inputs) {
    released.WaitForNotification();
    return std::vector<at::Tensor>{at::zeros({inputs[0].size(0), 99}, at::kDouble)};
  };
  EXPECT_EQ(*server->PublishPuppets(1, forward), 2);
  released.Notify();
  const ModelConfig config = (*server->publisher().FindOrLoad("m", 2))->config();
  EXPECT_EQ(config.row_independence, RowIndependence::kDependent);
  EXPECT_THAT(config.row_independence_reason, HasSubstr("the test of its rows failed"));
}

TEST_F(PublisherTest, AVersionLostInACrashKeepsItsNumberAndDoesNotEndThePin) {
  const TempDir crashed;
  BlockedFiles files;
  {
    const auto server = Start();
    ASSERT_EQ(*server->Publish(1), 2);
    ASSERT_THAT(server->publisher().Pin("m", 1), IsOk());
    ASSERT_EQ(*server->PublishFiles(1, files.Make()), 3);
    EXPECT_EQ(server->served(), 3);
    EXPECT_FALSE(server->Version(1).pinned);
    // The data directory as a crash would leave it.
    std::filesystem::copy(data_.path(), crashed.path(), std::filesystem::copy_options::recursive);
    files.Unblock();
  }
  Server server(repository_, crashed.path().string());
  server.publisher().ServeStored("m", {1});
  EXPECT_EQ(server.served(), 1);
  EXPECT_TRUE(server.Version(1).pinned);
  EXPECT_EQ(*server.publisher().Unpin("m"), 2);
  ASSERT_EQ(*server.Publish(1), 2);                     // published before the crash, and durable
  EXPECT_EQ(*server.PublishFiles(1, files.Make()), 3);  // repeated
  EXPECT_EQ(server.served(), 3);
  EXPECT_EQ(*server.PublishFiles(2, files.Make()), 4);
}

TEST_F(PublisherTest, AReplacedVersionThatIsNotWrittenIsSuperseded) {
  const auto server = Start();
  BlockedFiles files;
  ASSERT_EQ(*server->PublishFiles(1, files.Make()), 2);
  ASSERT_EQ(*server->PublishFiles(2, files.Make()), 3);
  ASSERT_THAT(server->publisher().SetLabel("m", "kept", 3), IsOk());
  ASSERT_EQ(*server->PublishFiles(3, files.Make()), 4);
  ASSERT_EQ(*server->PublishFiles(4, files.Make()), 5);
  EXPECT_EQ(server->StateOfFiles(3), Durability::kPending);
  EXPECT_EQ(server->StateOfFiles(4), Durability::kSuperseded);
  const VersionInfo superseded = server->Version(4);
  EXPECT_EQ(superseded.state, VersionInfo::State::kUnavailable);
  EXPECT_THAT(superseded.reason, HasSubstr("version 5 replaced it before it was written"));
  EXPECT_EQ(*server->PublishFiles(3, files.Make()), 4);  // a retry
  EXPECT_EQ(server->served(), 5);
  EXPECT_THAT(server->publisher().Pin("m", 4),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no version 4")));
  files.Unblock();
  server->publisher().Flush();
  EXPECT_EQ(server->StateOfFiles(3), Durability::kDurable);
  EXPECT_EQ(server->StateOfFiles(5), Durability::kDurable);
}

TEST_F(PublisherTest, AVersionThatCannotBeWrittenIsServed) {
  const auto server = Start();
  ASSERT_THAT(server->publisher().Pin("m", 1), IsOk());
  const auto fail = [](ByteSink*) { return absl::ResourceExhaustedError("no space left"); };
  ASSERT_EQ(*server->PublishFiles(1, {{kTorchScriptFile, fail}}), 2);
  EXPECT_THAT(server->publisher().WaitForDurability("m", 2).reason, HasSubstr("no space left"));
  EXPECT_EQ(server->served(), 2);
  const VersionInfo failed = server->Version(2);
  EXPECT_EQ(failed.durability.durability, Durability::kFailed);
  EXPECT_EQ(failed.state, VersionInfo::State::kReady);
  EXPECT_FALSE(server->Version(1).pinned);
  ASSERT_EQ(*server->Publish(1), 3);
  EXPECT_THAT(server->publisher().Delete("m", 2), IsOk());
}

// Otherwise a client would not repeat the publication after a crash.
TEST_F(PublisherTest, ACheckpointFollowsTheVersionsThatItsOperationsPublished) {
  const auto server = Start();
  BlockedFiles files;
  ASSERT_EQ(*server->PublishFiles(1, files.Make()), 2);
  const auto published = Do(server->trainer(), braid::Publish(1));
  ASSERT_THAT(published, IsOk());
  EXPECT_EQ(published->durability.durability, Durability::kPending);
  Pending<Durability> at_checkpoint;
  server->trainer().SaveCheckpoint(
      [&, done = at_checkpoint.done()](const absl::StatusOr<CheckpointInfo>& info) mutable {
        EXPECT_THAT(info, IsOk());
        done(server->StateOfFiles(published->version));
      });
  ASSERT_THAT(StateOf(server->trainer()), IsOk());  // The checkpoint has been copied.
  files.Unblock();
  EXPECT_EQ(at_checkpoint.Wait(), Durability::kDurable);
}

TEST_F(PublisherTest, ARestartServesTheLastPublishedVersion) {
  at::Tensor published;
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
    published = server->Infer();
  }
  const auto server = Start();
  EXPECT_EQ(server->served(), 1);
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 2);
  EXPECT_TRUE(at::equal(server->Infer(), published));
  EXPECT_EQ((*server->models().Find("m", 0))->config().origin.at("trainer"), "t");
}

// Somebody has put a version into the repository without a look at what was published.
TEST_F(PublisherTest, AHiddenRepositoryFolderIsServedUnderAnotherNumber) {
  const auto server = Start();
  const at::Tensor first = server->Infer();
  server->Step(1);
  ASSERT_EQ(*server->Publish(2), 2);
  const at::Tensor published = server->Infer();
  const std::filesystem::path model = repository_.path() / "m";
  std::filesystem::copy(model / "1", model / "2", std::filesystem::copy_options::recursive);
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 2);
  EXPECT_TRUE(at::equal(server->Infer(), published));
  std::filesystem::rename(model / "2", model / "3");  // as the warning says
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 3);
  EXPECT_TRUE(at::equal(server->Infer(), first));
}

// The server fell after the version was there and before a checkpoint held its operation.
TEST_F(PublisherTest, ARetriedPublishReturnsTheSameVersion) {
  at::Tensor published;
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_THAT(Save(server->trainer()), IsOk());
    ASSERT_EQ(*server->Publish(2), 2);
    published = server->Infer();
  }
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  ASSERT_THAT(Resume(server->trainer()), IsOk());
  EXPECT_EQ(*server->Publish(2), 2);
  EXPECT_EQ(server->served(), 2);
  EXPECT_TRUE(at::equal(server->Infer(), published));
  server->Step(3);
  EXPECT_EQ(*server->Publish(4), 3);
}

// Later decisions stay in force, also after a restart.
TEST_F(PublisherTest, ARetriedPublishDoesNotReplaceALaterVersion) {
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_THAT(Save(server->trainer()), IsOk());
    ASSERT_EQ(*server->Publish(2), 2);
    EXPECT_EQ(server->publisher().Rollback("m", 1)->previous, 2);
    ASSERT_THAT(Resume(server->trainer()), IsOk());
    EXPECT_EQ(*server->Publish(2), 2);
    EXPECT_EQ(server->served(), 1);
  }
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 1);
  ASSERT_THAT(Resume(server->trainer()), IsOk());
  EXPECT_EQ(*server->Publish(2), 2);
  EXPECT_EQ(server->served(), 1);
  server->Step(3);
  EXPECT_EQ(*server->Publish(4), 3);
  EXPECT_EQ(server->served(), 3);
  ASSERT_THAT(Resume(server->trainer()), IsOk());
  EXPECT_EQ(*server->Publish(2), 2);
  EXPECT_EQ(server->served(), 3);
}

// With the same number and the same weights, but after a return that somebody asked for.
TEST_F(PublisherTest, APublishAfterARestoreIsANewVersion) {
  const auto server = Start();
  server->Step(1);
  ASSERT_THAT(Save(server->trainer()), IsOk());
  ASSERT_EQ(*server->Publish(2), 2);
  EXPECT_EQ(server->publisher().Rollback("m", 1)->previous, 2);
  ASSERT_THAT(Restore(server->trainer()), IsOk());
  EXPECT_EQ(*server->Publish(2), 3);
  EXPECT_EQ(server->served(), 3);
}

// The server fell after the version was written and before it was served.
TEST_F(PublisherTest, ANewVersionEndsARollback) {
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
    EXPECT_EQ(server->publisher().Rollback("m", 1)->previous, 2);
  }
  const std::filesystem::path pins = data_.path() / "serving.json";
  const std::filesystem::path kept = data_.path() / "kept.json";
  std::filesystem::copy_file(pins, kept);
  {
    const auto server = Start();
    server->publisher().ServeStored("m", {1});
    EXPECT_EQ(server->served(), 1);
    server->Step(1, /*rows=*/7);
    ASSERT_EQ(*server->Publish(2), 3);
  }
  std::filesystem::copy_file(kept, pins, std::filesystem::copy_options::overwrite_existing);
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 3);
}

// A trainer that restores a checkpoint may reach a published sequence number with other weights.
TEST_F(PublisherTest, OtherWeightsAreANewVersion) {
  const auto server = Start();
  server->Step(1);
  ASSERT_THAT(Save(server->trainer()), IsOk());
  server->Step(2);
  ASSERT_EQ(*server->Publish(3), 2);
  ASSERT_THAT(Restore(server->trainer()), IsOk());
  server->Step(2, /*rows=*/7);
  EXPECT_EQ(*server->Publish(3), 3);
}

TEST_F(PublisherTest, ARollbackSurvivesARestart) {
  at::Tensor first;
  at::Tensor second;
  {
    const auto server = Start();
    first = server->Infer();
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
    second = server->Infer();
    server->Step(3);
    ASSERT_EQ(*server->Publish(4), 3);
    EXPECT_EQ(server->publisher().Rollback("m", 1)->previous, 3);  // of the repository
    EXPECT_EQ(server->served(), 1);
    EXPECT_TRUE(at::equal(server->Infer(), first));
    EXPECT_EQ(server->publisher().Rollback("m", 2)->previous, 1);  // of the data directory
    EXPECT_TRUE(at::equal(server->Infer(), second));
    EXPECT_EQ(server->publisher().Rollback("m", 2)->previous, 2);
    ASSERT_THAT(Save(server->trainer()), IsOk());
  }
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 2);
  EXPECT_TRUE(at::equal(server->Infer(), second));
  ASSERT_THAT(Restore(server->trainer()), IsOk());
  server->Step(5);
  EXPECT_EQ(*server->Publish(6), 4);  // after the highest
  const auto next = Start();
  next->publisher().ServeStored("m", {1});
  EXPECT_EQ(next->served(), 4);  // and no longer gone back from
}

TEST_F(PublisherTest, ARollbackPinsUnlessTheVersionIsTheNewest) {
  const auto server = Start();
  server->Step(1);
  ASSERT_EQ(*server->Publish(2), 2);
  EXPECT_TRUE(server->publisher().Rollback("m", 1)->pinned);
  EXPECT_FALSE(server->publisher().Rollback("m", 2)->pinned);
  EXPECT_TRUE(server->publisher().Pin("m", 2)->pinned);
}

TEST_F(PublisherTest, APinLastsUntilUnpin) {
  {
    const auto server = Start();
    EXPECT_TRUE(server->publisher().Pin("m", 1)->pinned);
    Export(2);
    server->publisher().ServeStored("m", {1});
    EXPECT_EQ(server->served(), 1);
  }
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 1);
  EXPECT_TRUE(server->Version(1).pinned);
  EXPECT_EQ(*server->publisher().Unpin("m"), 2);
  EXPECT_EQ(server->served(), 2);
  EXPECT_FALSE(server->Version(1).pinned);
  EXPECT_EQ(*server->publisher().Unpin("m"), 2);
}

TEST_F(PublisherTest, APinOfADeletedFolderIsListedAndHasNoEffect) {
  Export(2);
  Export(3);
  {
    const auto server = Start();
    ASSERT_THAT(server->publisher().Pin("m", 2), IsOk());
    ASSERT_THAT(server->publisher().SetLabel("m", "old", 2), IsOk());
  }
  const std::filesystem::path folder = repository_.path() / "m/2";
  std::filesystem::rename(folder, repository_.path() / "m/away");
  {
    const auto server = Start();
    server->publisher().ServeStored("m", {1});
    EXPECT_EQ(server->served(), 3);
    const VersionInfo missing = server->Version(2);
    EXPECT_EQ(missing.state, VersionInfo::State::kUnavailable);
    EXPECT_EQ(missing.reason, "its folder does not exist");
    EXPECT_EQ(missing.origin, VersionInfo::Origin::kUnknown);
    EXPECT_TRUE(missing.pinned);
    EXPECT_THAT(missing.labels, ElementsAre("old"));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto upload, server->publisher().StartUpload("m"));
    ASSERT_THAT(upload->Append("model.pt", Contents(repository_.path() / "m/1/model.pt")), IsOk());
    BRAID_ASSERT_OK_AND_ASSIGN(const UploadedVersion uploaded,
                               server->publisher().Upload("m", upload.get()));
    EXPECT_TRUE(uploaded.serving);
    ASSERT_THAT(server->publisher().SetLabel("m", "new", 3), IsOk());
    EXPECT_EQ(server->served(), uploaded.version);
    EXPECT_TRUE(server->Version(2).pinned);
  }
  std::filesystem::rename(repository_.path() / "m/away", folder);
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 2);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(*server->publisher().Unpin("m"), 4);
  EXPECT_EQ(server->served(), 4);
}

TEST_F(PublisherTest, DoesNotReuseTheNumberOfADeletedVersionThatIsPinned) {
  {
    const auto server = Start();
    ASSERT_EQ(*server->Publish(1), 2);
    ASSERT_THAT(server->publisher().Pin("m", 2), IsOk());
  }
  std::filesystem::remove_all(data_.path() / "models/m/2");
  EXPECT_EQ(*Start()->publisher().Reserve("m"), 3);
}

TEST_F(PublisherTest, LoadsThePinnedOrNewestStoredVersion) {
  {
    const auto server = Start();
    ASSERT_EQ(*server->Publish(1), 2);
    server->Step(2);
    ASSERT_EQ(*server->Publish(3), 3);
  }
  EXPECT_EQ(Start()->publisher().LoadStored("m", TrainedConfig())->version, 3);
  const std::filesystem::path newest = data_.path() / "models/m/3/model.pt";
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) / 2);
  const auto server = Start();
  EXPECT_EQ(server->publisher().LoadStored("m", TrainedConfig())->version, 2);
  ModelConfig config = TrainedConfig();
  config.version_policy = SpecificVersions{{1}};
  EXPECT_EQ(server->publisher().LoadStored("m", config).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_THAT(server->publisher().Pin("m", 2), IsOk());
  EXPECT_EQ(server->publisher().LoadStored("m", config)->version, 2);
}

TEST_F(PublisherTest, LoadsAVersionThatIsNotServedForItsCallerAlone) {
  const std::unique_ptr<Server> server = Start();
  server->Step(1);
  ASSERT_EQ(*server->Publish(2), 2);
  ASSERT_FALSE(server->models().Find("m", 1).ok());  // The version policy serves the newest.
  const auto queue = server->publisher().FindOrLoad("m", 1);
  ASSERT_THAT(queue, IsOk());
  EXPECT_EQ((*queue)->version(), 1);
  EXPECT_FALSE(server->models().Find("m", 1).ok());
  EXPECT_EQ((*server->publisher().FindOrLoad("m", 0))->version(), 2);
  EXPECT_THAT(server->publisher().FindOrLoad("m", 7),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("version 7")));
  EXPECT_THAT(server->publisher().FindConfig("m", 1), IsOk());
  EXPECT_THAT(server->publisher().FindConfig("m", 7),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("version 7")));
}

TEST_F(PublisherTest, LabelsSurviveARestart) {
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
    EXPECT_EQ(*server->publisher().SetLabel("m", "stable", 1), 0);
    EXPECT_EQ(server->Labelled("stable"), 1);
    EXPECT_EQ(server->served(), 2);
    server->Step(3);
    ASSERT_EQ(*server->Publish(4), 3);
    EXPECT_EQ(*server->publisher().SetLabel("m", "stable", 2), 1);
    EXPECT_EQ(server->Labelled("stable"), 2);
    EXPECT_EQ(server->served(), 3);
    EXPECT_FALSE(server->models().Find("m", 1).ok());
  }
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->Labelled("stable"), 2);
  EXPECT_EQ(server->served(), 3);
  EXPECT_THAT(server->Version(2).labels, ElementsAre("stable"));
  EXPECT_EQ(*server->publisher().SetLabel("m", "stable", 0), 2);
  EXPECT_FALSE(server->models().FindLabel("m", "stable").ok());
  EXPECT_FALSE(server->models().Find("m", 2).ok());
}

TEST_F(PublisherTest, RejectsInvalidLabels) {
  const auto server = Start();
  EXPECT_THAT(server->publisher().SetLabel("m", "12", 1), RefusesField("label", HasSubstr("'12'")));
  EXPECT_THAT(server->publisher().SetLabel("m", "stable", 7),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no version 7")));
  EXPECT_THAT(server->publisher().SetLabel("m", "stable", 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no label 'stable'")));
}

TEST_F(PublisherTest, ListsVersionsWithTheirOrigin) {
  for (const auto& server : {Start(), StartInMemory()}) {
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
    const VersionInfo first = server->Version(1);
    EXPECT_EQ(first.origin, VersionInfo::Origin::kExported);
    EXPECT_EQ(first.state, VersionInfo::State::kIdle);
    EXPECT_GT(first.created, absl::UnixEpoch());
    const VersionInfo second = server->Version(2);
    EXPECT_EQ(second.origin, VersionInfo::Origin::kPublished);
    EXPECT_EQ(second.trainer, "t");
    EXPECT_EQ(second.step, 1);
    EXPECT_EQ(second.state, VersionInfo::State::kReady);
    EXPECT_TRUE(second.serving);
  }
  EXPECT_THAT(Start()->publisher().ListVersions("n"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("unknown model 'n'")));
}

TEST_F(PublisherTest, ListsWhyTheLastLoadOfAServedVersionFailed) {
  const auto server = Start();
  server->models().MarkFailed("m", 1, absl::FailedPreconditionError("broken"));
  EXPECT_EQ(server->Version(1).state, VersionInfo::State::kReady);
  EXPECT_THAT(server->Version(1).reason, HasSubstr("broken"));
}

TEST_F(PublisherTest, ListsAFolderWhoseNumberWasPublished) {
  const auto server = Start();
  server->Step(1);
  ASSERT_EQ(*server->Publish(2), 2);
  Export(2);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto versions, server->publisher().ListVersions("m"));
  ASSERT_EQ(versions.size(), 3);
  EXPECT_EQ(versions[2].version, 2);
  EXPECT_EQ(versions[2].state, VersionInfo::State::kIgnored);
  EXPECT_THAT(versions[2].reason,
              HasSubstr("trainer 't' published version 2. To serve this folder, rename it to 3"));
}

TEST_F(PublisherTest, DeletesAVersionThatNobodyUses) {
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
    server->Step(3);
    ASSERT_EQ(*server->Publish(4), 3);
    Publisher& publisher = server->publisher();
    const auto refused = [&](int64_t version, const char* why) {
      EXPECT_THAT(publisher.Delete("m", version),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why)));
    };
    refused(1, "in the model repository");
    refused(3, "being served");
    ASSERT_THAT(publisher.SetLabel("m", "stable", 2), IsOk());
    refused(2, "label 'stable'");
    ASSERT_THAT(publisher.Pin("m", 2), IsOk());
    refused(2, "pinned");
    EXPECT_THAT(publisher.Delete("m", 3), IsOk());
    EXPECT_THAT(publisher.Delete("m", 3), StatusIs(absl::StatusCode::kNotFound, HasSubstr("3")));
  }
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 2);
  EXPECT_EQ(*server->publisher().Reserve("m"), 4);  // not 3 again
}

TEST_F(PublisherTest, AssignsEachNumberOnce) {
  {
    const auto server = Start();
    EXPECT_EQ(*server->publisher().Reserve("m"), 2);
    EXPECT_EQ(*server->publisher().Reserve("m"), 3);
    EXPECT_EQ(*server->publisher().Reserve("new"), 1);
    EXPECT_THAT(server->publisher().Reserve("a/b"), RefusesField("model", HasSubstr("'a/b'")));
    EXPECT_EQ(*server->Publish(1), 4);
  }
  EXPECT_EQ(*Start()->publisher().Reserve("m"), 5);
}

TEST_F(PublisherTest, ReturnsNotFoundForAnUnknownVersion) {
  const auto server = Start();
  server->Step(1);
  ASSERT_EQ(*server->Publish(2), 2);
  EXPECT_THAT(server->publisher().Rollback("m", 9),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("there are 1, 2")));
  EXPECT_THAT(server->publisher().Rollback("n", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'n'")));
  EXPECT_EQ(server->served(), 2);
}

TEST_F(PublisherTest, RollsBackToTheRepositoryWithoutADataDirectory) {
  const auto server = StartInMemory();
  const at::Tensor first = server->Infer();
  server->Step(1);
  ASSERT_EQ(*server->Publish(2), 2);
  EXPECT_EQ(server->publisher().Rollback("m", 1)->previous, 2);
  EXPECT_TRUE(at::equal(server->Infer(), first));
  EXPECT_EQ(*server->Publish(3), 3);
}

// A damaged stored version is skipped: the model serves the version in the repository.
TEST_F(PublisherTest, DoesNotServeADamagedVersion) {
  {
    const auto server = Start();
    server->Step(1);
    ASSERT_EQ(*server->Publish(2), 2);
  }
  const std::filesystem::path file = data_.path() / "models/m/2/model.pt";
  ASSERT_TRUE(std::filesystem::exists(file));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const auto server = Start();
  server->publisher().ServeStored("m", {1});
  EXPECT_EQ(server->served(), 1);
  EXPECT_FALSE(server->publisher().Rollback("m", 2).ok());
  EXPECT_EQ(server->served(), 1);
}

}  // namespace
}  // namespace braid
