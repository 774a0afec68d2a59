// Trainers that are kept on the disk: through a restart, idle times and deletion.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/registry_bench.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoredTrainersTest : public StoredRegistryTest {
 protected:
  std::filesystem::path DirectoryOf(const std::string& name) const {
    return dir_.path() / "trainers" / name;
  }
  static TrainerSpec Idle(const std::string& name) {
    TrainerSpec spec = Named(name);
    spec.idle_timeout = absl::Milliseconds(50);
    return spec;
  }
  bool GoneSoon(const std::string& name) {
    return Eventually([&] { return !Get(name).ok(); });
  }
};

TEST_F(StoredTrainersTest, ARestartRestoresTrainers) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Create(Named("b")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(2, 20)), IsOk());
  ASSERT_THAT(Save("a"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult lost, Do("a", BatchOperation(3, 20)));
  Start();
  EXPECT_TRUE(registry().List().empty());
  registry().RestoreStored();
  ASSERT_EQ(registry().List().size(), 2);
  EXPECT_EQ(Get("a")->applied_sequence, 2);
  EXPECT_EQ(Get("a")->step, 2);
  EXPECT_EQ(Get("b")->applied_sequence, 0);  // durable from its start
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult again, Do("a", BatchOperation(3, 20)));
  EXPECT_EQ(again.loss, lost.loss);
}

TEST_F(StoredTrainersTest, RestoresATrainerOnDiskWithinTheLimit) {
  ASSERT_THAT(Create(Idle("idle")), IsOk());
  ASSERT_TRUE(GoneSoon("idle"));
  for (size_t t = 0; t < kMost; ++t) {
    ASSERT_THAT(Create(Named(std::to_string(t))), IsOk());
  }
  EXPECT_THAT(RestoreCheckpoint("idle"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max_trainers")));
  ASSERT_THAT(Delete("0"), IsOk());
  EXPECT_THAT(RestoreCheckpoint("idle"), IsOk());
}

TEST_F(StoredTrainersTest, ConcurrentRestoresReturnTheSameTrainer) {
  ASSERT_THAT(Create(Idle("idle")), IsOk());
  ASSERT_TRUE(GoneSoon("idle"));
  for (size_t t = 1; t < kMost; ++t) {
    ASSERT_THAT(Create(Named(std::to_string(t))), IsOk());
  }
  Pending<absl::StatusOr<CheckpointInfo>> first;
  Pending<absl::StatusOr<CheckpointInfo>> second;
  registry().RestoreCheckpoint("idle", "", first.done());
  registry().RestoreCheckpoint("idle", "", second.done());
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(second.Wait(), IsOk());
}

TEST_F(StoredTrainersTest, ARestartWithOtherDevicesRestoresTrainers) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  ASSERT_THAT(Save("a"), IsOk());
  TrainerSpec& stored = requests_["request of a"];
  stored.stages = {{"", {"cpu:6", "cpu:1", "cpu:7"}}};
  stored.output_device = "cpu:6";
  Start();
  registry().RestoreStored();
  EXPECT_EQ(Get("a")->applied_sequence, 1);
  EXPECT_THAT(Get("a")->devices, ElementsAre("cpu:1"));
  stored.stages = {{"", {"cpu:6"}}};
  Start();
  registry().RestoreStored();
  EXPECT_THAT(Get("a")->devices, ElementsAre("cpu:0", "cpu:1"));
  EXPECT_THAT(Do("a", BatchOperation(2, 20)), IsOk());
}

TEST_F(StoredTrainersTest, SaveAllSavesEveryOperation) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  registry().SaveAll();
  EXPECT_EQ(Get("a")->durable_sequence, 1);
  const size_t checkpoints = Checkpoints("a")->size();
  registry().SaveAll();  // there is nothing new
  EXPECT_EQ(Checkpoints("a")->size(), checkpoints);
  Start();
  registry().RestoreStored();
  EXPECT_EQ(Get("a")->applied_sequence, 1);
}

TEST_F(StoredTrainersTest, SaveAllSavesTheOperationsBeforeAKeptGraph) {
  TrainerSpec spec = ClientSpec();
  spec.name = "a";
  spec.checkpoints.every_operations = 1000;
  ASSERT_THAT(Create(spec), IsOk());
  ASSERT_THAT(Do("a", KeptForward(1)), IsOk());
  ASSERT_THAT(Do("a", BackwardOfOnes(2)), IsOk());
  ASSERT_THAT(Do("a", OptimStep(3)), IsOk());
  ASSERT_THAT(Do("a", KeptForward(4)), IsOk());
  EXPECT_TRUE(registry().SaveAll());
  Start();
  registry().RestoreStored();
  EXPECT_EQ(Get("a")->applied_sequence, 3);
  EXPECT_EQ(Get("a")->step, 1);
  EXPECT_THAT(Do("a", KeptForward(4)), IsOk());
  EXPECT_THAT(Do("a", BackwardOfOnes(5)), IsOk());
}

TEST_F(StoredTrainersTest, DeletingRemovesTheDirectory) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  EXPECT_TRUE(std::filesystem::exists(DirectoryOf("a")));
  EXPECT_THAT(Delete("a"), IsOk());
  EXPECT_FALSE(std::filesystem::exists(DirectoryOf("a")));
  Start();
  registry().RestoreStored();
  EXPECT_TRUE(registry().List().empty());
  EXPECT_THAT(Create(Named("a")), IsOk());
}

TEST_F(StoredTrainersTest, AFailedCreateLeavesNothingOnDisk) {
  TrainerSpec spec = Named("a");
  spec.losses[0].name = "hinge";
  EXPECT_THAT(Create(spec), RefusesField("losses[0].name", HasSubstr("hinge")));
  EXPECT_FALSE(std::filesystem::exists(DirectoryOf("a")));
  EXPECT_THAT(Create(Named("a")), IsOk());
}

// Its checkpoints are not the next one's, whose retention would take them away.
TEST_F(StoredTrainersTest, KeepsTheNameOfADamagedTrainer) {
  ASSERT_THAT(Create(Named("cut")), IsOk());
  ASSERT_THAT(Create(Named("gone")), IsOk());
  std::filesystem::resize_file(DirectoryOf("cut") / "trainer.json", 10);
  std::filesystem::remove(DirectoryOf("gone") / "trainer.json");
  Start();
  registry().RestoreStored();
  EXPECT_TRUE(registry().List().empty());
  for (const std::string name : {"cut", "gone"}) {
    const auto damaged = StatusIs(absl::StatusCode::kDataLoss,
                                  AllOf(HasSubstr("'" + name + "'"), HasSubstr("trainer.json")));
    EXPECT_THAT(Create(Named(name)), damaged);
    EXPECT_THAT(RestoreCheckpoint(name), damaged);
    EXPECT_FALSE(std::filesystem::is_empty(DirectoryOf(name) / "checkpoints"));
    EXPECT_THAT(Delete(name), IsOk());
    EXPECT_FALSE(std::filesystem::exists(DirectoryOf(name)));
    EXPECT_THAT(Create(Named(name)), IsOk());
  }
}

TEST_F(StoredTrainersTest, AnIdleTrainerExpiresAndCanBeRestored) {
  ASSERT_THAT(Create(Idle("a")), IsOk());
  ASSERT_THAT(Create(Named("b")), IsOk());
  ASSERT_THAT(Do("b", BatchOperation(1, 20)), IsOk());
  // The trainer exists, or can be restored completely, whenever it expires.
  int64_t sequence = 0;
  while (sequence == 0) {
    const auto result = Do("a", BatchOperation(1, 20));
    if (result.ok()) {
      sequence = result->applied_sequence;
    } else {
      ASSERT_THAT(RestoreCheckpoint("a"), IsOk());
    }
  }
  ASSERT_TRUE(GoneSoon("a"));
  EXPECT_THAT(Get("b"), IsOk());
  EXPECT_TRUE(std::filesystem::exists(DirectoryOf("a")));
  EXPECT_THAT(Create(Named("a")), StatusIs(absl::StatusCode::kAlreadyExists,
                                           AllOf(HasSubstr("'a'"), HasSubstr("exist_ok"))));
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo restored, RestoreCheckpoint("a"));
  EXPECT_EQ(restored.sequence, 1);
}

TEST_F(StoredTrainersTest, ARestartDoesNotRestoreExpiredTrainers) {
  ASSERT_THAT(Create(Idle("a")), IsOk());
  ASSERT_TRUE(GoneSoon("a"));
  Start();
  registry().RestoreStored();
  EXPECT_TRUE(registry().List().empty());
  EXPECT_THAT(RestoreCheckpoint("a"), IsOk());
  ASSERT_TRUE(GoneSoon("a"));
  EXPECT_THAT(Delete("a"), IsOk());
  EXPECT_FALSE(std::filesystem::exists(DirectoryOf("a")));
  EXPECT_THAT(RestoreCheckpoint("a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("unknown trainer 'a'")));
}

// The others come back, and what it has left on the disk stays there.
TEST_F(StoredTrainersTest, LeavesUnreadableTrainersOnDisk) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Create(Named("b")), IsOk());
  ASSERT_THAT(Create(Named("c")), IsOk());
  Stop();
  std::ofstream(DirectoryOf("a") / "trainer.json") << "{}";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(DirectoryOf("b"))) {
    if (entry.path().filename() == "optimizer.safetensors") {
      std::ofstream(entry.path()) << "damaged";
    }
  }
  Start();
  registry().RestoreStored();
  ASSERT_EQ(registry().List().size(), 2);
  EXPECT_EQ(registry().List()[0].spec.name, "b");
  EXPECT_TRUE(registry().List()[0].on_disk);
  EXPECT_FALSE(registry().List()[1].on_disk);
  EXPECT_TRUE(std::filesystem::exists(DirectoryOf("a") / "trainer.json"));
  EXPECT_TRUE(std::filesystem::exists(DirectoryOf("b") / "trainer.json"));
  EXPECT_THAT(
      RestoreCheckpoint("b"),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("trainer 'b' cannot be read from disk"),
                                                  HasSubstr("all 1 checkpoints are damaged"))));
}

class InMemoryTest : public RegistryTest {
 protected:
  InMemoryTest() : RegistryTest("") {}
};

TEST_F(InMemoryTest, RejectsSettingsThatNeedADataDirectory) {
  TrainerSpec spec = Named("a");
  spec.idle_timeout = absl::Milliseconds(50);
  EXPECT_THAT(Create(spec), RefusesField("idle_timeout_seconds", HasSubstr("--data_dir")));
  spec = Named("a");
  spec.checkpoints.every_operations = 1;
  EXPECT_THAT(Create(spec), RefusesField("checkpoints.every_operations", HasSubstr("--data_dir")));
  spec = Named("a");
  spec.checkpoints.every = absl::Seconds(1);
  EXPECT_THAT(Create(spec), RefusesField("checkpoints.every_seconds", HasSubstr("--data_dir")));
  EXPECT_THAT(Create(Named("a")), IsOk());
}

}  // namespace
}  // namespace braid
