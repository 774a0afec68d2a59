// A trainer that is stopped and started again, or goes back, goes on with the same bits.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/parallel/host_copy.h"
#include "server/storage/safetensors.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/trainer_bench.h"
#include "tests/unit/storage/file_tools.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// With dropout, and a buffer that counts.
torch::jit::Module Module() {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("calls", at::zeros({}, at::kDouble));
  module.define(R"(
def forward(self, x):
  if self.training:
    self.calls.add_(1)
  h = torch.dropout(torch.tanh(x @ self.w1 + self.b1), 0.5, self.training)
  return h @ self.w2
)");
  return module;
}

// A trainer with more state: moments, a schedule that watches the losses, random numbers.
TrainerSpec SpecOf(CheckpointPolicy checkpoints = {}) {
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.05});
  spec.schedule.kind = PlateauScheduleSpec{.interval = 2, .factor = 0.5, .patience = 0};
  spec.clipping.max_norm = 0.5;
  spec.seed = 7;
  spec.checkpoints = checkpoints;
  return spec;
}

// Operation `sequence` of every run.
Operation OperationOf(int64_t sequence) {
  constexpr OperationKind kKinds[] = {OperationKind::kStep, OperationKind::kForwardBackward,
                                      OperationKind::kForward, OperationKind::kOptimStep};
  Operation operation =
      BatchOperation(sequence, 3 + sequence, kKinds[static_cast<size_t>(sequence) % 4]);
  if (operation.kind == OperationKind::kOptimStep) {
    operation = OptimStep(sequence);
  }
  operation.fingerprint = {static_cast<uint64_t>(sequence), 1};
  operation.report_split = true;
  return operation;
}

// The server's life; another one on the same directory is the next.
class Life {
 public:
  explicit Life(const TempDir& dir, const TrainerSpec& spec = SpecOf(), int workers = 2)
      : bench_(Module(), workers, dir.path().string()), trainer_(bench_.MustCreate(spec)) {}

  void Apply(int64_t first, int64_t last) {
    for (int64_t sequence = first; sequence <= last; ++sequence) {
      ASSERT_THAT(Do(*trainer_, OperationOf(sequence)), IsOk()) << sequence;
    }
  }
  Trainer& operator*() { return *trainer_; }
  Trainer* operator->() { return trainer_.get(); }
  TrainerBench& bench() { return bench_; }
  State state() { return *StateOf(*trainer_); }

 private:
  TrainerBench bench_;
  std::unique_ptr<Trainer> trainer_;
};

std::vector<std::string> NamesOf(const Trainer& trainer) {
  std::vector<std::string> names;
  const std::vector<CheckpointInfo> infos = trainer.ListCheckpoints().value();
  for (const CheckpointInfo& info : infos) {
    names.push_back(info.name);
  }
  return names;
}

class TrainerCheckpointsTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const TempDir other_;
};

// Wherever it was stopped: between an accumulation and its update, after a Forward, …
TEST_F(TrainerCheckpointsTest, ARestartContinuesWithTheSameBits) {
  Life undisturbed(other_);
  undisturbed.Apply(1, 12);
  for (int64_t stop = 1; stop <= 6; ++stop) {
    const TempDir dir;
    OperationResult last;
    {
      Life before(dir);
      before.Apply(1, stop - 1);
      last = *Do(*before, OperationOf(stop));
      BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo saved, Save(*before));
      EXPECT_EQ(saved.sequence, stop);
      EXPECT_EQ(before->info().durable_sequence, stop);
      before.Apply(stop + 1, stop + 2);  // which is lost
    }
    Life after(dir);
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo restored, Restore(*after));
    EXPECT_EQ(restored.sequence, stop);
    EXPECT_EQ(after->info().applied_sequence, stop);
    EXPECT_EQ(after->info().durable_sequence, stop);
    EXPECT_EQ(after->info().step, last.step);

    // Its reply was lost as well: it comes again.
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult again, Do(*after, OperationOf(stop)));
    EXPECT_TRUE(again.replayed);
    EXPECT_EQ(again.applied_sequence, stop);
    EXPECT_EQ(again.loss, last.loss);
    EXPECT_EQ(again.lr, last.lr);
    EXPECT_EQ(again.gradient_norm, last.gradient_norm);
    EXPECT_EQ(again.chunks.size(), last.chunks.size());
    ASSERT_EQ(again.outputs.size(), last.outputs.size());
    for (size_t o = 0; o < last.outputs.size(); ++o) {
      EXPECT_TRUE(at::equal(View(again.outputs[o]), View(last.outputs[o])));
    }
    Operation other = OperationOf(stop);
    other.fingerprint = {99, 99};
    EXPECT_THAT(Do(*after, std::move(other)), StatusIs(absl::StatusCode::kAborted, HasSubstr("")));

    after.Apply(stop + 1, 12);
    ExpectSameState(after.state(), undisturbed.state(), 0);
    EXPECT_EQ(after->info().lr, undisturbed->info().lr);
  }
}

TEST_F(TrainerCheckpointsTest, WritesACheckpointEveryNOperationsAndKeepsTheNewest) {
  Life life(dir_, SpecOf({.every_operations = 2, .keep = 2}));
  for (int64_t sequence = 2; sequence <= 6; sequence += 2) {
    life.Apply(sequence - 1, sequence);
    // The last one is written before another begins, so that none is left out.
    ASSERT_TRUE(Eventually([&] { return life->info().durable_sequence == sequence; }));
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult next, Do(*life, OperationOf(7)));
  EXPECT_EQ(next.durable_sequence, 6);
  EXPECT_THAT(NamesOf(*life), ElementsAre("step-000000002-sequence-000000004",
                                          "step-000000002-sequence-000000006"));
}

// Nothing comes after it that would have the trainer look again.
TEST_F(TrainerCheckpointsTest, WritesACheckpointThatBecameDueDuringAnother) {
  Life life(dir_, SpecOf({.every_operations = 2}));
  life.Apply(1, 1);
  std::vector<Pending<absl::StatusOr<CheckpointInfo>>> saves(20);
  for (auto& save : saves) {
    life->SaveCheckpoint(save.done());
  }
  life.Apply(2, 3);  // the disk is behind
  for (auto& save : saves) {
    ASSERT_THAT(save.Wait(), IsOk());
  }
  EXPECT_TRUE(Eventually([&] { return life->info().durable_sequence == 3; }));
}

// Otherwise a crash after the checkpoint would lose the metrics for good.
TEST_F(TrainerCheckpointsTest, WritesTrackedMetricsBeforeTheCheckpointOfTheirStep) {
  const TempDir tracked;
  const RealClock clock;
  BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Tracking> tracking,
                             Tracking::Create(tracked.path(), &clock));
  TrainerBench bench(Module(), 1, dir_.path().string());
  bench.Track(tracking.get());
  const std::unique_ptr<Trainer> trainer = bench.MustCreate(SpecOf());
  const auto busy = tracking->Open(Tracking::JobFolder("busy"));
  for (int64_t step = 1; step <= 20'000; ++step) {  // more than are written at once
    busy->Add(step, {{"loss", 1}});
  }
  ASSERT_THAT(Do(*trainer, BatchOperation(1, 3)), IsOk());
  ASSERT_THAT(Save(*trainer), IsOk());
  const auto folder = tracked.path() / Tracking::TrainerFolder(trainer->spec().name);
  EXPECT_THAT(Contents(folder / "metrics.csv"), HasSubstr("\n1,"));
  EXPECT_THAT(Contents(folder / "metrics.jsonl"), HasSubstr("{\"step\":1,"));
}

TEST_F(TrainerCheckpointsTest, CallsItsOwnerBetweenAResultAndTheCheckpoint) {
  Life life(dir_, SpecOf({.every_operations = 1}));
  std::atomic<bool> reported = false;
  std::atomic<int> calls = 0;
  life->SetBeforeCheckpoint([&] {
    ++calls;
    EXPECT_TRUE(reported);
    EXPECT_EQ(life->info().durable_sequence, 0);
  });
  life->Submit(OperationOf(1), [&](const absl::StatusOr<OperationResult>& result) {
    EXPECT_THAT(result, IsOk());
    reported = true;
  });
  ASSERT_TRUE(Eventually([&] { return life->info().durable_sequence == 1; }));
  EXPECT_EQ(calls, 1);
  life->SetBeforeCheckpoint(nullptr);
  life.Apply(2, 2);
  ASSERT_TRUE(Eventually([&] { return life->info().durable_sequence == 2; }));
  EXPECT_EQ(calls, 1);
}

TEST_F(TrainerCheckpointsTest, WritesACheckpointAfterAPeriodWithOperations) {
  Life life(dir_, SpecOf({.every = absl::Hours(1)}));
  const auto tick = [&](absl::Duration time) {
    life->Tick(absl::Now() + time);
    ASSERT_THAT(StateOf(*life), IsOk());  // its turn has come
  };
  tick(absl::Hours(2));
  life.Apply(1, 1);
  tick(absl::Minutes(59));
  EXPECT_EQ(Save(*life)->sequence, 1);  // it would wait for another
  EXPECT_EQ(NamesOf(*life).size(), 1);
  life.Apply(2, 2);
  tick(absl::Hours(2));
  EXPECT_TRUE(Eventually([&] { return life->info().durable_sequence == 2; }));
  EXPECT_EQ(NamesOf(*life).size(), 2);
}

// A check that waits for an operation must not swallow the time of a later one.
TEST_F(TrainerCheckpointsTest, ChecksAtTheLatestOfTheTimesThatWait) {
  Life life(dir_, SpecOf({.every = absl::Hours(1)}));
  Pending<absl::StatusOr<OperationResult>> operation;
  life->Submit(OperationOf(1), operation.done());
  life->Tick(absl::Now());
  life->Tick(absl::Now() + absl::Hours(2));
  ASSERT_THAT(operation.Wait(), IsOk());
  EXPECT_TRUE(Eventually([&] { return life->info().durable_sequence == 1; }));
}

absl::StatusOr<CheckpointInfo> SaveLast(Trainer& trainer) {
  Pending<absl::StatusOr<CheckpointInfo>> pending;
  trainer.SaveLast(pending.done());
  return pending.Wait();
}

// Forward, Backward, OptimStep, and again.
void ApplyClients(Life& life, int64_t first, int64_t last) {
  for (int64_t sequence = first; sequence <= last; ++sequence) {
    Operation operation = sequence % 3 == 1   ? KeptForward(sequence)
                          : sequence % 3 == 2 ? BackwardOfOnes(sequence)
                                              : OptimStep(sequence);
    operation.fingerprint = {static_cast<uint64_t>(sequence), 1};
    ASSERT_THAT(Do(*life, std::move(operation)), IsOk()) << sequence;
  }
}

// The client sends the Forward again, whose buffers count once.
TEST_F(TrainerCheckpointsTest, SaveLastExcludesAForwardWithPendingBackward) {
  TrainerSpec spec = ClientSpec();
  spec.seed = 7;
  spec.checkpoints.every_operations = 1000;
  Life undisturbed(other_, spec);
  ApplyClients(undisturbed, 1, 6);
  {
    Life before(dir_, spec);
    ApplyClients(before, 1, 4);
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo saved, SaveLast(*before));
    EXPECT_EQ(saved.sequence, 3);
    EXPECT_EQ(before->info().applied_sequence, 4);
    EXPECT_EQ(before->info().durable_sequence, 3);
    EXPECT_EQ(SaveLast(*before)->name, saved.name);
    EXPECT_EQ(NamesOf(*before).size(), 1);
    // The graph is still there.
    ApplyClients(before, 5, 6);
    ExpectSameState(before.state(), undisturbed.state(), 0);
  }
  Life after(dir_, spec);
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo resumed, Resume(*after));
  EXPECT_EQ(resumed.sequence, 3);
  ApplyClients(after, 3, 6);  // the reply to the third may have been lost
  ExpectSameState(after.state(), undisturbed.state(), 0);
}

// Without a policy no client sends anything again.
TEST_F(TrainerCheckpointsTest, SaveLastIncludesTheForwardWithoutAPolicy) {
  Life life(dir_, ClientSpec());
  ApplyClients(life, 1, 4);
  EXPECT_EQ(SaveLast(*life)->sequence, 4);
}

TEST_F(TrainerCheckpointsTest, ARestoreSurvivesARestart) {
  std::string first;
  {
    Life life(dir_);
    life.Apply(1, 4);
    first = Save(*life)->name;
    life.Apply(5, 8);
    ASSERT_THAT(Save(*life), IsOk());
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo back, Restore(*life, first));
    EXPECT_EQ(back.name, first);
    EXPECT_EQ(life->info().applied_sequence, 4);
    EXPECT_EQ(life->info().durable_sequence, 4);
    EXPECT_THAT(Restore(*life, "step-000000099-sequence-000000099"),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("sequence-000000099")));
    EXPECT_EQ(life->info().applied_sequence, 4);
  }
  Life after(dir_);
  ASSERT_THAT(Restore(*after), IsOk());
  EXPECT_EQ(after->info().applied_sequence, 4);
  after.Apply(5, 8);
  Life undisturbed(other_);
  undisturbed.Apply(1, 8);
  ExpectSameState(after.state(), undisturbed.state(), 0);
}

TEST_F(TrainerCheckpointsTest, TwoRunsFromOneCheckpointKeepTheirOwnCheckpoints) {
  Life life(dir_, SpecOf({.keep = 0}));
  life.Apply(1, 2);
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo start, Save(*life));
  life.Apply(3, 4);
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo first, Save(*life));
  const State of_first = life.state();
  ASSERT_THAT(Restore(*life, start.name), IsOk());
  ASSERT_THAT(Do(*life, BatchOperation(3, 2)), IsOk());
  ASSERT_THAT(Do(*life, BatchOperation(4, 2)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo second, Save(*life));
  const State of_second = life.state();
  EXPECT_EQ(second.sequence, first.sequence);
  EXPECT_THAT(NamesOf(*life), ElementsAre(first.name, start.name, second.name));
  ASSERT_THAT(Restore(*life, first.name), IsOk());
  ExpectSameState(life.state(), of_first, 0);
  ASSERT_THAT(Restore(*life, second.name), IsOk());
  ExpectSameState(life.state(), of_second, 0);
}

// Otherwise the next checkpoint would contain an older state than its name says.
TEST_F(TrainerCheckpointsTest, ARestoreThatCannotBeWrittenChangesNothing) {
  Life life(dir_);
  life.Apply(1, 4);
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo first, Save(*life));
  life.Apply(5, 8);
  const State before = life.state();
  // The path of the new manifest, next to the old one.
  std::filesystem::create_directories(life.bench().checkpoints() + "/" + first.name +
                                      "/manifest.json.tmp/in the way");
  EXPECT_FALSE(Restore(*life, first.name).ok());
  EXPECT_EQ(life->info().applied_sequence, 8);
  ExpectSameState(life.state(), before, 0);
  life.Apply(9, 12);
  Life undisturbed(other_);
  undisturbed.Apply(1, 12);
  ExpectSameState(life.state(), undisturbed.state(), 0);
}

TEST_F(TrainerCheckpointsTest, RejectsCheckpointsOfAnotherModelOrOptimizer) {
  {
    Life life(dir_);
    life.Apply(1, 4);
    ASSERT_THAT(Save(*life), IsOk());
  }
  TrainerSpec sgd = SpecOf();
  sgd.optimizer = SgdSpec{.lr = 0.1};
  Life other(dir_, sgd);
  const State before = other.state();
  EXPECT_THAT(Restore(*other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("'Adam'"), HasSubstr("'SGD'"))));
  ExpectSameState(other.state(), before, 0);
  EXPECT_EQ(other->info().applied_sequence, 0);

  TrainerSpec renamed = SpecOf();
  renamed.model = "n";
  Life of_another(dir_, SpecOf());
  ModelConfig config = TrainedConfig();
  config.name = "n";
  of_another.bench().models()->Serve({config, 1,
                                      ReplicaSet(of_another.bench().fleet().workers(),
                                                 MakeReplicas(Module(), TrainedConfig(), 2))});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto trainer, of_another.bench().Create(renamed));
  EXPECT_THAT(Restore(*trainer), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          AllOf(HasSubstr("'m'"), HasSubstr("'n'"))));
}

TEST_F(TrainerCheckpointsTest, RestoresWithAnotherNumberOfWorkers) {
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.05});
  {
    TrainerBench bench(Mlp(), 3, dir_.path().string());
    const auto trainer = bench.MustCreate(spec);
    ASSERT_THAT(Do(*trainer, BatchOperation(1, 20)), IsOk());
    ASSERT_THAT(Do(*trainer, BatchOperation(2, 7, OperationKind::kForwardBackward)), IsOk());
    ASSERT_THAT(Save(*trainer), IsOk());
  }
  TrainerBench one(Mlp(), 1, dir_.path().string());
  const auto restored = one.MustCreate(spec);
  ASSERT_THAT(Restore(*restored), IsOk());
  TrainerBench bench(Mlp(), 3);
  const auto undisturbed = bench.MustCreate(spec);
  ASSERT_THAT(Do(*undisturbed, BatchOperation(1, 20)), IsOk());
  ASSERT_THAT(Do(*undisturbed, BatchOperation(2, 7, OperationKind::kForwardBackward)), IsOk());
  for (Trainer* trainer : {restored.get(), undisturbed.get()}) {
    ASSERT_THAT(Do(*trainer, OptimStep(3)), IsOk());
  }
  ExpectSameState(*StateOf(*restored), *StateOf(*undisturbed), 1e-12);
}

TEST_F(TrainerCheckpointsTest, HasNoCheckpointsWithoutADataDirectory) {
  TrainerBench bench(Mlp(), 1);
  const auto trainer = bench.MustCreate(TrainedSpec());
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--data_dir"));
  EXPECT_THAT(Save(*trainer), refused);
  EXPECT_THAT(Restore(*trainer), refused);
  EXPECT_THAT(trainer->ListCheckpoints(), refused);
  EXPECT_THAT(Do(*trainer, BatchOperation(1, 4)), IsOk());
}

// The disk fails: training goes on, and what was durable is still said to be.
TEST_F(TrainerCheckpointsTest, ReportsACheckpointThatCannotBeWritten) {
  Life life(dir_, SpecOf({.every_operations = 1}));
  life.Apply(1, 1);
  ASSERT_TRUE(Eventually([&] { return life->info().durable_sequence == 1; }));
  std::filesystem::remove_all(life.bench().checkpoints());
  std::ofstream(life.bench().checkpoints()) << "a file in its place";
  life.Apply(2, 3);
  EXPECT_FALSE(Save(*life).ok());
  EXPECT_EQ(life->info().durable_sequence, 1);
  life.Apply(4, 4);
}

TEST_F(TrainerCheckpointsTest, CheckpointsShareTheModelThatTheTrainerStartedFrom) {
  std::vector<std::string> bases;
  State start;
  for (const int64_t first : {1, 5}) {
    Life life(dir_);
    const std::string place = life.bench().checkpoints() + "/";
    if (first == 1) {
      start = life.state();
    } else {
      BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo resumed, Resume(*life));
      EXPECT_EQ(resumed.sequence, 4);
    }
    life.Apply(first, first + 3);
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo saved, Save(*life));
    bases.push_back(place + saved.name + "/base.pt");
    BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<HostTensor> weights,
                               ReadSafetensors(place + saved.name + "/weights.safetensors"));
    State loaded;
    for (const HostTensor& weight : weights) {
      loaded[weight.name] = View(weight).clone();
    }
    ExpectSameState(loaded, life.state(), 0);
  }
  EXPECT_TRUE(std::filesystem::equivalent(bases[0], bases[1]));
  const torch::jit::Module module = torch::jit::load(bases[0]);
  for (const auto& [name, value] : start) {
    EXPECT_TRUE(at::equal(module.attr(name).toTensor().detach(), value)) << name;
  }
}

// An update that is interrupted halfway, on the second of two devices.
class PoisonedTrainerTest : public ::testing::Test {
 protected:
  PoisonedTrainerTest() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(MakeCpuDevice(/*threads=*/1));
    auto fake = std::make_unique<FakeDevice>();
    device_ = fake.get();
    devices.push_back(std::move(fake));
    bench_ = std::make_unique<TrainerBench>(
        Module(), std::make_unique<WorkerFleet>(std::move(devices)), dir_.path().string());
    TrainerSpec spec = SpecOf();
    spec.sync = SyncMode::kReduceBroadcast;
    trainer_ = bench_->MustCreate(spec);
  }
  // Fails the last wait of a step, when the update has begun.
  absl::Status PoisonTrainer() {
    EXPECT_THAT(Do(*trainer_, BatchOperation(1, 7)), IsOk());
    EXPECT_THAT(Save(*trainer_), IsOk());
    EXPECT_THAT(Do(*trainer_, BatchOperation(2, 7)), IsOk());  // leaves the checkpoint's memory
    const int before = device_->synchronized();
    EXPECT_THAT(Do(*trainer_, BatchOperation(3, 7)), IsOk());
    device_->FailOnceAfter(device_->synchronized() - before);
    return Do(*trainer_, BatchOperation(4, 7)).status();
  }

  const TempDir dir_;
  FakeDevice* device_ = nullptr;
  std::unique_ptr<TrainerBench> bench_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_F(PoisonedTrainerTest, RejectsEverythingButARestore) {
  const auto lost = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("was interrupted"));
  EXPECT_THAT(PoisonTrainer(), lost);
  EXPECT_THAT(Do(*trainer_, BatchOperation(4, 7)), lost);
  EXPECT_THAT(Do(*trainer_, BatchOperation(3, 7)), lost);
  EXPECT_THAT(Do(*trainer_, Publish(4)), lost);
  EXPECT_THAT(StateOf(*trainer_), lost);
  EXPECT_THAT(Save(*trainer_), lost);
  EXPECT_EQ(trainer_->info().applied_sequence, 3);
  EXPECT_EQ(trainer_->ListCheckpoints()->size(), 1);

  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo restored, Restore(*trainer_));
  EXPECT_EQ(restored.sequence, 1);
  EXPECT_EQ(trainer_->info().applied_sequence, 1);
  for (const int64_t sequence : {2, 3}) {
    ASSERT_THAT(Do(*trainer_, BatchOperation(sequence, 7)), IsOk());
  }
  TrainerBench bench(Module(), 2);
  const auto undisturbed = bench.MustCreate(SpecOf());
  for (const int64_t sequence : {1, 2, 3}) {
    ASSERT_THAT(Do(*undisturbed, BatchOperation(sequence, 7)), IsOk());
  }
  ExpectSameState(*StateOf(*trainer_), *StateOf(*undisturbed), 0);
}

}  // namespace
}  // namespace braid
