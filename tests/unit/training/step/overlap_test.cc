// Gradients that are summed while the backward passes go on: over a link that the test watches.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "server/devices/nccl_communicator.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/host_communicator.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TrainerSpec SpecOf(SyncMode sync) {
  TrainerSpec spec =
      TrainedSpec(AdamSpec{.decoupled_weight_decay = true, .lr = 0.05, .weight_decay = 0.01});
  spec.sync = sync;
  spec.clipping.max_value = 0.1;
  return spec;
}

class OverlapTest : public ::testing::TestWithParam<SyncMode> {
 protected:
  std::unique_ptr<TrainedModule> Linked(TrainerSpec spec, std::unique_ptr<WorkerFleet> fleet,
                                        bool overlap = true) {
    const auto link = [this](const std::vector<Worker*>& ranks) {
      return std::make_unique<HostCommunicator>(ranks.size(), &calls_);
    };
    auto trained = std::make_unique<TrainedModule>(TwoStages(), std::move(fleet), std::move(spec),
                                                   TrainedConfig(), link, overlap);
    EXPECT_THAT(trained->status(), IsOk());
    return trained;
  }
  std::unique_ptr<TrainedModule> Linked(TrainerSpec spec, int workers) {
    return Linked(std::move(spec), std::make_unique<WorkerFleet>(workers));
  }
  // The sums that have begun since the last call.
  std::vector<size_t> Sums() { return std::exchange(calls_.sums, {}); }

  HostCommunicator::Calls calls_;
};
INSTANTIATE_TEST_SUITE_P(Syncs, OverlapTest,
                         ::testing::Values(SyncMode::kReduceBroadcast, SyncMode::kAllReduce));

TEST_P(OverlapTest, ChangesNoBits) {
  for (const int workers : {2, 3, 4}) {
    const auto linked = Linked(SpecOf(GetParam()), workers);
    TrainedModule plain(TwoStages(), workers, SpecOf(GetParam()));
    for (int64_t step = 0; step < 20; ++step) {
      const int64_t rows = 1 + 3 * step % 5;
      for (TrainedModule* each : {linked.get(), &plain}) {
        if (step % 4 == 3) {
          ASSERT_THAT(each->ForwardBackward(Inputs(rows + 2), Classes(rows + 2)), IsOk());
        }
        ASSERT_THAT(each->Step(Inputs(rows), Classes(rows)), IsOk());
      }
    }
    ExpectSameState(linked->state(), plain.state(), 0);
    EXPECT_FALSE(Sums().empty());
    EXPECT_GT(calls_.reduces, 0);
  }
}

TEST_P(OverlapTest, OverlapsShapesThatHaveRunWithout) {
  const auto linked = Linked(SpecOf(GetParam()), 2);
  for (const int64_t rows : {6, 4, 7}) {
    ASSERT_THAT(linked->Step(Inputs(rows), Classes(rows)), IsOk());
    EXPECT_THAT(Sums(), IsEmpty()) << rows;
  }
  for (const int64_t rows : {4, 7, 6}) {
    ASSERT_THAT(linked->Step(Inputs(rows), Classes(rows)), IsOk());
    EXPECT_THAT(Sums(), ElementsAre(0)) << rows;
  }
}

TEST_P(OverlapTest, DoesNotOverlapAShapeWhoseStepFailed) {
  const auto linked = Linked(SpecOf(GetParam()), 2);
  EXPECT_FALSE(linked->Step(Inputs(6) * 1e308 * 10, Classes(6)).ok());
  ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
  EXPECT_THAT(Sums(), IsEmpty());
}

TEST_P(OverlapTest, DoesNotOverlapUnlessEnabled) {
  const auto linked =
      Linked(SpecOf(GetParam()), std::make_unique<WorkerFleet>(2), /*overlap=*/false);
  for (int step = 0; step < 3; ++step) {
    ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
  }
  EXPECT_THAT(Sums(), IsEmpty());
  EXPECT_EQ(calls_.reduces, 3);
}

TEST_P(OverlapTest, DoesNotOverlapAccumulatedBatches) {
  const auto linked = Linked(SpecOf(GetParam()), 2);
  ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
  ASSERT_THAT(linked->ForwardBackward(Inputs(6), Classes(6)), IsOk());
  ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
  EXPECT_THAT(Sums(), IsEmpty());
}

TEST_P(OverlapTest, DoesNotOverlapMicroBatches) {
  TrainerSpec spec = SpecOf(GetParam());
  spec.micro_batch = 2;
  const auto linked = Linked(spec, 2);
  for (int step = 0; step < 2; ++step) {
    ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
  }
  EXPECT_THAT(Sums(), IsEmpty());
}

TEST_P(OverlapTest, ANonFiniteBatchChangesNothing) {
  const auto linked = Linked(SpecOf(GetParam()), 2);
  ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
  const State before = linked->state();
  EXPECT_THAT(linked->Step(Inputs(6) * 1e308 * 10, Classes(6)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not finite")));
  ExpectSameState(linked->state(), before, 0);
  TrainedModule plain(TwoStages(), 2, SpecOf(GetParam()));
  ASSERT_THAT(plain.Step(Inputs(6), Classes(6)), IsOk());
  for (TrainedModule* each : {linked.get(), &plain}) {
    ASSERT_THAT(each->Step(Inputs(5), Classes(5)), IsOk());
  }
  ExpectSameState(linked->state(), plain.state(), 0);
}

TEST_P(OverlapTest, KeepsTheStateIfASumFailsDuringOrAfterTheBackwardPass) {
  for (const bool overlap : {true, false}) {
    calls_.fail = absl::OkStatus();
    const auto linked = Linked(SpecOf(GetParam()), std::make_unique<WorkerFleet>(2), overlap);
    ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
    const State before = linked->state();
    calls_.fail = absl::InternalError("NCCL: unhandled");
    EXPECT_THAT(linked->Step(Inputs(6), Classes(6)),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("unhandled")));
    ExpectSameState(linked->state(), before, 0);
    EXPECT_FALSE((*linked)->poisoned());
  }
}

TEST_P(OverlapTest, ACollectiveThatIsAbortedFailsTheStepAndLosesTheDevices) {
  for (const bool overlap : {false, true}) {
    FakeNccl nccl;
    FakeCudaBackend cuda(2);
    cuda.nccl = &nccl;
    const auto link = [&](const std::vector<Worker*>& ranks) -> std::unique_ptr<Communicator> {
      return *NcclCommunicator::Create(ranks, cuda, {.interval = absl::Milliseconds(1)});
    };
    TrainedModule trained(TwoStages(), std::make_unique<WorkerFleet>(2), SpecOf(GetParam()),
                          TrainedConfig(), link, overlap);
    ASSERT_THAT(trained.Step(Inputs(6), Classes(6)), IsOk());
    nccl.set_hang(FakeNccl::Hang::kUnderWay);
    nccl.set_running_fault(absl::InternalError("cudaStreamQuery: unspecified launch failure"));
    EXPECT_THAT(trained.Step(Inputs(6), Classes(6)),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is lost")));
    EXPECT_FALSE(trained->poisoned());
    EXPECT_FALSE(trained.fleet().worker(0).healthy());
    EXPECT_FALSE(trained.fleet().worker(1).healthy());
    EXPECT_EQ(nccl.aborted(), 1);
  }
}

TEST_P(OverlapTest, AFaultBeforeTheUpdateChangesNothing) {
  int whole = 0;
  for (int wait = 1; wait <= 5; ++wait) {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(MakeCpuDevice(/*threads=*/1));
    auto fake = std::make_unique<FakeDevice>();
    FakeDevice* const device = fake.get();
    devices.push_back(std::move(fake));
    const auto linked =
        Linked(SpecOf(GetParam()), std::make_unique<WorkerFleet>(std::move(devices)));
    ASSERT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
    const State before = linked->state();
    device->FailOnceAfter(wait);
    EXPECT_THAT(linked->Step(Inputs(6), Classes(6)),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("the device is lost")));
    if (!(*linked)->poisoned()) {
      ++whole;
      ExpectSameState(linked->state(), before, 0);
      EXPECT_THAT(linked->Step(Inputs(6), Classes(6)), IsOk());
    }
  }
  EXPECT_GE(whole, 2);
}

}  // namespace
}  // namespace braid
