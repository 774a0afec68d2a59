// Trainers that leave memory while nobody uses them.
#include "server/training/trainer/paged_trainer.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/registry_bench.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class PagedTrainerTest : public StoredRegistryTest {
 protected:
  // Restarts the registry with a limit of `bytes` per device.
  void LimitMemory(int64_t bytes) {
    memory_ = {{"cpu:0", bytes}, {"cpu:1", bytes}};
    Start();
    registry().RestoreStored();
  }
  bool OnDisk(const std::string& name) {
    const std::vector<TrainerState> states = registry().States();
    const auto found = std::ranges::find(states, name, &TrainerState::name);
    return found != states.end() && found->on_disk;
  }
  bool OnDiskSoon(const std::string& name) {
    return Eventually([&] { return OnDisk(name); });
  }
  std::filesystem::path CheckpointsOf(const std::string& name) const {
    return dir_.path() / "trainers" / name / "checkpoints";
  }
  State Weights(const std::string& name) {
    Pending<absl::StatusOr<std::vector<StateTensor>>> pending;
    registry().GetState(name, pending.done());
    EXPECT_THAT(pending.Wait(), IsOk());
    State state;
    for (const StateTensor& entry : *pending.Wait()) {
      state[entry.tensor.name] = View(entry.tensor).clone();
    }
    return state;
  }
};

TEST_F(PagedTrainerTest, AnIdleTrainerLeavesMemoryBeyondTheLimit) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo in_memory, Get("a"));
  EXPECT_FALSE(in_memory.on_disk);
  EXPECT_THAT(in_memory.memory, SizeIs(2));
  LimitMemory(0);
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  ASSERT_TRUE(OnDiskSoon("a"));
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo info, Get("a"));
  EXPECT_TRUE(info.on_disk) << "Get() reads no trainer that it knows";
  EXPECT_THAT(info.memory, IsEmpty());
  EXPECT_EQ(info.step, 1);
  EXPECT_EQ(info.applied_sequence, 1);
  EXPECT_EQ(info.durable_sequence, 1);
  EXPECT_EQ(info.lr, in_memory.lr);
  EXPECT_EQ(info.id, in_memory.id);
  EXPECT_EQ(info.devices, in_memory.devices);
}

TEST_F(PagedTrainerTest, TrainsAsIfItStayedInMemory) {
  const auto run = [this](const std::string& name, bool wait) {
    TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.1});
    spec.name = name;
    spec.seed = 7;
    EXPECT_THAT(Create(spec), IsOk());
    std::vector<double> losses;
    for (int64_t step = 1; step <= 5; ++step) {
      const auto accumulated =
          Do(name, BatchOperation(2 * step - 1, 20, OperationKind::kForwardBackward));
      EXPECT_THAT(accumulated, IsOk());
      EXPECT_TRUE(!wait || OnDiskSoon(name));
      EXPECT_THAT(Do(name, OptimStep(2 * step)), IsOk());
      losses.push_back(*accumulated->loss);
    }
    return std::pair(losses, Weights(name));
  };
  const auto [losses, weights] = run("a", /*wait=*/false);
  LimitMemory(0);
  const auto [paged_losses, paged_weights] = run("b", /*wait=*/true);
  EXPECT_EQ(paged_losses, losses);
  for (const auto& [name, weight] : weights) {
    EXPECT_TRUE(at::equal(paged_weights.at(name), weight)) << name;
  }
}

TEST_F(PagedTrainerTest, AppliesEveryOperationInItsOrderWhileItComesAndGoes) {
  LimitMemory(0);
  ASSERT_THAT(Create(Named("a")), IsOk());
  int64_t sequence = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::unique_ptr<PendingOperation>> pending;
    for (int i = 0; i < 5; ++i) {
      pending.push_back(std::make_unique<PendingOperation>());
      registry().Submit("a", BatchOperation(++sequence, 20), pending.back()->done());
    }
    for (const auto& one : pending) {
      ASSERT_THAT(one->Wait(), IsOk());
    }
    // Later and later, around the time when it is freed.
    absl::SleepFor(absl::Milliseconds(6 * round));
  }
  EXPECT_EQ(Get("a")->step, sequence);
}

TEST_F(PagedTrainerTest, FreesTheLeastRecentlyUsedTrainersFirst) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo info, Get("a"));
  LimitMemory(2 * info.memory[0].current);
  for (const std::string name : {"b", "c", "d"}) {
    ASSERT_THAT(Create(Named(name)), IsOk());
  }
  ASSERT_THAT(Do("b", BatchOperation(1, 20)), IsOk());
  ASSERT_TRUE(OnDiskSoon("a"));
  ASSERT_TRUE(OnDiskSoon("c"));
  EXPECT_FALSE(OnDisk("b"));
  EXPECT_FALSE(OnDisk("d"));
}

TEST_F(PagedTrainerTest, StaysInMemoryWhileItKeepsAGraph) {
  LimitMemory(0);
  TrainerSpec spec = ClientSpec();
  spec.name = "a";
  ASSERT_THAT(Create(spec), IsOk());
  ASSERT_THAT(Create(Named("b")), IsOk());
  ASSERT_THAT(Do("a", KeptForward(1)), IsOk());
  ASSERT_TRUE(OnDiskSoon("b"));
  EXPECT_FALSE(OnDisk("a"));
  ASSERT_THAT(Do("a", BackwardOfOnes(2)), IsOk());
  EXPECT_TRUE(OnDiskSoon("a"));
  EXPECT_THAT(Do("a", OptimStep(3)), IsOk());
}

TEST_F(PagedTrainerTest, WritesNoCheckpointIfNothingHasChanged) {
  LimitMemory(0);
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_TRUE(OnDiskSoon("a"));
  EXPECT_THAT(Checkpoints("a").value(), SizeIs(1));
  ASSERT_TRUE(OnDiskSoon("a"));
  EXPECT_THAT(Checkpoints("a").value(), SizeIs(1));
}

TEST_F(PagedTrainerTest, StaysInMemoryIfItCannotBeSaved) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  LimitMemory(0);
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  ASSERT_TRUE(OnDiskSoon("a"));
  ASSERT_THAT(Do("a", BatchOperation(2, 20)), IsOk());  // reads it
  // Nothing can be written into a file.
  std::filesystem::rename(CheckpointsOf("a"), dir_.path() / "away");
  std::ofstream(CheckpointsOf("a")) << "in the way";
  for (int64_t sequence = 3; sequence < 20; ++sequence) {
    ASSERT_THAT(Do("a", BatchOperation(sequence, 20)), IsOk());
    absl::SleepFor(absl::Milliseconds(30));
    ASSERT_FALSE(OnDisk("a"));
  }
  std::filesystem::remove(CheckpointsOf("a"));
  std::filesystem::rename(dir_.path() / "away", CheckpointsOf("a"));
  EXPECT_TRUE(OnDiskSoon("a"));
  EXPECT_EQ(Get("a")->durable_sequence, 19);
}

TEST_F(PagedTrainerTest, ADamagedTrainerReportsItAndLeavesOthersAlone) {
  LimitMemory(0);
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Create(Named("b")), IsOk());
  ASSERT_TRUE(OnDiskSoon("a"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CheckpointsOf("a"))) {
    if (entry.path().filename() == "optimizer.safetensors") {
      std::ofstream(entry.path()) << "damaged";
    }
  }
  for (int call = 0; call < 2; ++call) {
    EXPECT_THAT(Do("a", BatchOperation(1, 20)),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("trainer 'a' cannot be read from disk"),
                               HasSubstr("checkpoints are damaged"))));
  }
  EXPECT_THAT(Do("b", BatchOperation(1, 20)), IsOk());
  EXPECT_THAT(Delete("a"), IsOk());
  EXPECT_THAT(Create(Named("a")), IsOk());
}

TEST_F(PagedTrainerTest, ATrainerOnDiskCanBeDeletedOrExpire) {
  TrainerSpec idle = Named("idle");
  idle.idle_timeout = absl::Milliseconds(600);
  LimitMemory(0);
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Create(idle), IsOk());
  ASSERT_TRUE(OnDiskSoon("a"));
  EXPECT_THAT(Delete("a"), IsOk());
  EXPECT_FALSE(std::filesystem::exists(CheckpointsOf("a")));
  EXPECT_THAT(Do("a", BatchOperation(1, 20)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("unknown trainer 'a'")));
  EXPECT_TRUE(Eventually([&] { return registry().List().empty(); }));
  EXPECT_THAT(RestoreCheckpoint("idle"), IsOk());
}

TEST_F(PagedTrainerTest, ARestartReadsTheNewestTrainersAndFindsTheOthers) {
  constexpr size_t kMore = 3;
  most_ = TrainerRegistry::kReadAtStart + kMore;
  Start();
  for (size_t t = 0; t < most_; ++t) {
    ASSERT_THAT(Create(Named(std::to_string(t))), IsOk());
  }
  ASSERT_THAT(Do("0", BatchOperation(1, 20)), IsOk());
  ASSERT_THAT(Save("0"), IsOk());
  Start();
  registry().RestoreStored();
  EXPECT_THAT(registry().List(), SizeIs(most_));
  size_t on_disk = 0;
  for (const TrainerInfo& info : registry().List()) {
    on_disk += info.on_disk ? 1 : 0;
  }
  EXPECT_EQ(on_disk, kMore);
  EXPECT_FALSE(OnDisk("0"));
  EXPECT_TRUE(OnDisk("1"));
  // Reads it, because only the model knows the defaults.
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo info, Get("1"));
  EXPECT_THAT(info.devices, Not(IsEmpty()));
  EXPECT_THAT(Do("1", BatchOperation(1, 20)), IsOk());
  EXPECT_THAT(Do("2", BatchOperation(1, 20)), IsOk());
  EXPECT_FALSE(OnDisk("2"));
}

}  // namespace
}  // namespace braid
