// A model goes on from a snapshot as if nothing had happened in between.
#include "server/training/step/snapshot.h"

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Two parts, the first with a buffer that counts and one that follows the primary's rows.
torch::jit::Module Stateful(int64_t hidden = 5) {
  torch::jit::Module first = Part("First", 3, hidden);
  first.register_buffer("calls", at::zeros({}, at::kLong));
  first.register_buffer("mean", at::zeros({3}, at::kDouble));
  first.define(R"(
def forward(self, x):
  if self.training:
    self.calls.add_(1)
    self.mean.mul_(0.5).add_(x.mean(0))
  return torch.tanh((x - 0.1 * self.mean) @ self.w + self.b)
)");
  return Chain({{"first", first}, {"second", TanhPart("Second", hidden, 4)}});
}

TrainerSpec SpecOf(OptimizerSpec optimizer, std::vector<StageSpec> stages = {}) {
  TrainerSpec spec = TrainedSpec(optimizer);
  spec.stages = std::move(stages);
  spec.clipping.max_norm = 0.5;
  spec.groups = {{.pattern = "^second.b$", .frozen = true}, {.pattern = "b$", .lr = 0.3}};
  return spec;
}

// Into the middle of what accumulates.
void Begin(TrainedModule* trained) {
  for (const int64_t rows : {7, 20}) {
    ASSERT_THAT(trained->Step(Inputs(rows), Classes(rows)), IsOk());
  }
  for (const int64_t rows : {4, 3}) {  // of different numbers of chunks
    ASSERT_THAT(trained->ForwardBackward(Inputs(rows), Classes(rows)), IsOk());
  }
}
void GoOn(TrainedModule* trained) {
  ASSERT_THAT(trained->ForwardBackward(Inputs(2), Classes(2)), IsOk());
  ASSERT_THAT(trained->Update(), IsOk());
  for (const int64_t rows : {7, 1, 5}) {
    ASSERT_THAT(trained->Step(Inputs(rows), Classes(rows)), IsOk());
  }
}

class SnapshotTest : public ::testing::TestWithParam<OptimizerSpec> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, SnapshotTest,
                         ::testing::Values(SgdSpec{.lr = 0.3}, SgdSpec{.lr = 0.3, .momentum = 0.9},
                                           AdamSpec{.lr = 0.05, .amsgrad = true},
                                           RmsPropSpec{.lr = 0.05, .momentum = 0.5},
                                           AdagradSpec{.lr = 0.05,
                                                       .initial_accumulator_value = 0.1}));

TEST_P(SnapshotTest, TheSameReplicasGoOnWithTheSameBits) {
  for (const SyncMode sync : {SyncMode::kReduceBroadcast, SyncMode::kAllReduce}) {
    for (const int workers : {1, 3}) {
      TrainerSpec spec = SpecOf(GetParam());
      spec.sync = sync;
      TrainedModule trained(Stateful(), workers, spec);
      Begin(&trained);
      BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, trained->Snapshot());
      EXPECT_EQ(snapshot.accumulated, 2);
      const State then = trained.state();
      GoOn(&trained);  // which a snapshot is no part of
      TrainedModule restored(Stateful(), workers, spec);
      ASSERT_THAT(restored->Restore(snapshot), IsOk());
      EXPECT_EQ(restored->accumulated(), 2);
      ExpectSameState(restored.state(), then, 0);
      GoOn(&restored);
      ExpectSameState(restored.state(), trained.state(), 0);
      // Restores the earlier state over later operations.
      ASSERT_THAT(restored.ForwardBackward(Inputs(9), Classes(9)), IsOk());
      ASSERT_THAT(restored->Restore(snapshot), IsOk());
      GoOn(&restored);
      ExpectSameState(restored.state(), trained.state(), 0);
    }
  }
}

TEST_P(SnapshotTest, OtherNumbersOfReplicasGoOnToo) {
  for (const auto& [before, after] : {std::pair(1, 3), std::pair(3, 1), std::pair(3, 2)}) {
    TrainedModule trained(Stateful(), before, SpecOf(GetParam()));
    Begin(&trained);
    BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, trained->Snapshot());
    TrainedModule restored(Stateful(), after, SpecOf(GetParam()));
    ASSERT_THAT(restored->Restore(snapshot), IsOk());
    // The buffers are the primary's rows', which are others now: without them.
    for (TrainedModule* model : {&trained, &restored}) {
      ASSERT_THAT(model->Update(), IsOk());
    }
    ExpectSameState(restored.state(), trained.state(), 1e-12);
  }
}

std::set<std::string> NamesIn(const TrainingSnapshot& snapshot) {
  std::set<std::string> names;
  for (const StateTensor& entry : snapshot.model) {
    names.insert(entry.tensor.name);
  }
  return names;
}

// Frozen by a group or when the model was exported.
TEST(SnapshotFrozenTest, EveryReplicaGetsTheFrozenParametersOfAnOlderServersSnapshot) {
  for (const bool in_group : {true, false}) {
    const auto module = [in_group](double value) {
      torch::jit::Module stateful = Stateful();
      at::Tensor frozen = stateful.attr("second").toModule().attr("b").toTensor();
      frozen.set_requires_grad(false).fill_(value);
      frozen.set_requires_grad(in_group);
      return stateful;
    };
    TrainerSpec spec = SpecOf(SgdSpec{.lr = 0.3});
    if (!in_group) {
      spec.groups.clear();
    }
    TrainedModule trained(module(0.5), 3, spec);
    Begin(&trained);
    BRAID_ASSERT_OK_AND_ASSIGN(TrainingSnapshot snapshot, trained->Snapshot());
    EXPECT_EQ(NamesIn(snapshot).count("second.b"), 0);
    BRAID_ASSERT_OK_AND_ASSIGN(snapshot.model, trained->State());
    TrainedModule restored(module(-1), 3, spec);
    ASSERT_THAT(restored->Restore(snapshot), IsOk());
    GoOn(&trained);
    GoOn(&restored);
    ExpectSameState(restored.state(), trained.state(), 0);
  }
}

TEST(SnapshotStagesTest, StagesGoOnWithTheSameBits) {
  const TrainerSpec spec =
      SpecOf(AdamSpec{.lr = 0.05}, {{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:2", "cpu:0"}}});
  TrainedModule trained(Stateful(), 3, spec);
  Begin(&trained);
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, trained->Snapshot());
  TrainedModule restored(Stateful(), 3, spec);
  ASSERT_THAT(restored->Restore(snapshot), IsOk());
  GoOn(&trained);
  GoOn(&restored);
  ExpectSameState(restored.state(), trained.state(), 0);
}

TEST(SnapshotStagesTest, StagesMayBePlacedOtherwise) {
  TrainedModule trained(Stateful(), 2, SpecOf(AdamSpec{.lr = 0.05}));
  Begin(&trained);
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, trained->Snapshot());
  TrainedModule restored(
      Stateful(), 3, SpecOf(AdamSpec{.lr = 0.05}, {{"first", {"cpu:2"}}, {"second", {"cpu:1"}}}));
  ASSERT_THAT(restored->Restore(snapshot), IsOk());
  for (TrainedModule* model : {&trained, &restored}) {
    ASSERT_THAT(model->Update(), IsOk());
  }
  ExpectSameState(restored.state(), trained.state(), 1e-12);
}

TEST(SnapshotContentsTest, NamesWhatItHolds) {
  TrainedModule trained(Stateful(), 2, SpecOf(AdamSpec{.lr = 0.05}));
  Begin(&trained);
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, trained->Snapshot());
  EXPECT_THAT(snapshot.parameters, ElementsAre("first.w", "first.b", "second.w", "second.b"));
  EXPECT_THAT(snapshot.updates, ElementsAre(2, 2, 2, 0));
  const auto named = [](const char* name) { return Field(&HostTensor::name, name); };
  EXPECT_THAT(snapshot.optimizer, Contains(named("first.w.exp_avg_sq")));
  EXPECT_THAT(snapshot.optimizer, Not(Contains(Field(&HostTensor::name, StartsWith("second.b")))));
  EXPECT_THAT(snapshot.gradients, Contains(named("0/first.w")));
  EXPECT_THAT(snapshot.gradients, Contains(named("1/second.w")));
  ASSERT_THAT(trained.Update(), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot after, trained->Snapshot());
  EXPECT_THAT(after.gradients, IsEmpty());
}

// `spoil` makes it another's; refused, it leaves a model that goes on as if it had not been asked.
void ExpectRefused(const std::vector<StageSpec>& stages,
                   const std::function<void(TrainingSnapshot*)>& spoil) {
  const TrainerSpec spec = SpecOf(AdamSpec{.lr = 0.05}, stages);
  TrainedModule other(Stateful(), 3, spec);
  ASSERT_THAT(other.Step(Inputs(11), Classes(11)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(TrainingSnapshot snapshot, other->Snapshot());
  spoil(&snapshot);
  TrainedModule trained(Stateful(), 3, spec);
  TrainedModule spared(Stateful(), 3, spec);
  Begin(&trained);
  Begin(&spared);
  const absl::Status status = trained->Restore(snapshot);
  EXPECT_TRUE(absl::IsFailedPrecondition(status) || absl::IsDataLoss(status)) << status;
  EXPECT_FALSE(trained->poisoned());
  EXPECT_EQ(trained->accumulated(), 2);
  ExpectSameState(trained.state(), spared.state(), 0);
  GoOn(&trained);
  GoOn(&spared);
  ExpectSameState(trained.state(), spared.state(), 0);
}

// The last stage is wrong: the first must not be restored.
class RefusedSnapshotTest : public ::testing::TestWithParam<std::vector<StageSpec>> {};
INSTANTIATE_TEST_SUITE_P(Stages, RefusedSnapshotTest,
                         ::testing::Values(std::vector<StageSpec>{},
                                           std::vector<StageSpec>{{"first", {"cpu:0", "cpu:1"}},
                                                                  {"second", {"cpu:2"}}}));

TEST_P(RefusedSnapshotTest, AnotherShapeChangesNothing) {
  ExpectRefused(GetParam(), [](TrainingSnapshot* snapshot) {
    for (StateTensor& entry : snapshot->model) {
      if (entry.tensor.name == "second.w") {
        entry.tensor = ToHost(at::ones({5, 3}, at::kDouble), "second.w");
      }
    }
  });
}

TEST_P(RefusedSnapshotTest, AWeightThatIsMissingChangesNothing) {
  ExpectRefused(GetParam(), [](TrainingSnapshot* snapshot) {
    std::erase_if(snapshot->model,
                  [](const StateTensor& entry) { return entry.tensor.name == "second.w"; });
  });
}

TEST_P(RefusedSnapshotTest, OtherParametersChangeNothing) {
  ExpectRefused(GetParam(),
                [](TrainingSnapshot* snapshot) { snapshot->parameters.back() = "second.c"; });
}

TEST_P(RefusedSnapshotTest, AnotherOptimizersStateChangesNothing) {
  ExpectRefused(GetParam(), [](TrainingSnapshot* snapshot) {
    for (HostTensor& tensor : snapshot->optimizer) {
      if (tensor.name == "second.w.exp_avg") {
        tensor.name = "second.w.square_avg";
      }
    }
  });
}

TEST_P(RefusedSnapshotTest, OptimizerStateThatIsMissingChangesNothing) {
  ExpectRefused(GetParam(), [](TrainingSnapshot* snapshot) {
    std::erase_if(snapshot->optimizer,
                  [](const HostTensor& tensor) { return tensor.name == "second.w.exp_avg"; });
  });
}

TEST_P(RefusedSnapshotTest, ADamagedScalerChangesNothing) {
  ExpectRefused(GetParam(), [](TrainingSnapshot* snapshot) { snapshot->grad_scaler = {-1}; });
}

TEST(SnapshotScalerTest, TheScaleAndAnOverflowGoOn) {
  TrainerSpec spec = TrainedSpec();
  spec.precision = Precision::kFloat16;
  spec.grad_scaler.init_scale = 1099511627776;  // overflows float16
  ModelConfig config = TrainedConfig();
  config.inputs[0].type = DataType::kFp32;
  config.outputs[0].type = DataType::kFp32;
  torch::jit::Module module = Mlp();
  module.to(at::kFloat);
  const at::Tensor x = Inputs(7).to(at::kFloat);
  TrainedModule trained(module, 2, spec, config);
  EXPECT_TRUE(trained.Step(x, Classes(7))->skipped);
  ASSERT_THAT(trained.ForwardBackward(x, Classes(7)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, trained->Snapshot());
  TrainedModule restored(module, 2, spec, config);
  ASSERT_THAT(restored->Restore(snapshot), IsOk());
  EXPECT_EQ(restored->gradient_scale(), 1099511627776.0 / 2);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, restored.Update());
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(restored->gradient_scale(), 1099511627776.0 / 4);
}

}  // namespace
}  // namespace braid
