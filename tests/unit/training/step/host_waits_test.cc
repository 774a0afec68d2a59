// Counts how often a training step makes the host wait for a device with streams.
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/counting_allocator.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/host_communicator.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

// A model on devices that have events and page-locked memory.
class OnStreams {
 public:
  // `linked`: the replicas exchange gradients by a communicator, as GPUs do.
  OnStreams(TrainerSpec spec, int workers, bool linked) {
    std::vector<std::unique_ptr<Device>> devices;
    for (int d = 0; d < workers; ++d) {
      auto fake = std::make_unique<FakeDevice>();
      fake->time = absl::ZeroDuration();
      fake->pinned = &pinned_;
      devices_.push_back(fake.get());
      devices.push_back(std::move(fake));
    }
    TrainedModule::MakeLink link;
    if (linked) {
      link = [this](const std::vector<Worker*>& ranks) {
        return std::make_unique<HostCommunicator>(ranks.size(), &calls_);
      };
    }
    trained_ = std::make_unique<TrainedModule>(
        TwoStages(), std::make_unique<WorkerFleet>(std::move(devices)), std::move(spec),
        TrainedConfig(), link, /*overlap_reduction=*/false);
  }
  TrainedModule* operator->() { return trained_.get(); }

  // Waits of each device during `work`.
  template <typename Work>
  std::vector<int> Waits(Work work) {
    std::vector<int> waits;
    for (const FakeDevice* device : devices_) {
      waits.push_back(-device->synchronized());
    }
    EXPECT_THAT(work(), IsOk());
    for (size_t d = 0; d < devices_.size(); ++d) {
      waits[d] += devices_[d]->synchronized();
    }
    return waits;
  }
  int pinned_allocations() const { return pinned_.allocations(); }

 private:
  CountingAllocator pinned_;
  HostCommunicator::Calls calls_;
  std::vector<FakeDevice*> devices_;
  std::unique_ptr<TrainedModule> trained_;
};

TrainerSpec SpecOf(SyncMode sync) {
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.05});
  spec.sync = sync;
  spec.clipping.max_norm = 0.3;
  return spec;
}

class HostWaitsTest : public ::testing::TestWithParam<SyncMode> {};
INSTANTIATE_TEST_SUITE_P(Syncs, HostWaitsTest,
                         ::testing::Values(SyncMode::kReduceBroadcast, SyncMode::kAllReduce));

// One for loss, finite check and norm, after which the host decides on the update; one at the end.
TEST_P(HostWaitsTest, AStepWaitsTwiceForEachDevice) {
  for (const bool linked : {false, true}) {
    OnStreams model(SpecOf(GetParam()), 3, linked);
    const auto step = [&] { return model->Step(Inputs(7), Classes(7)).status(); };
    ASSERT_THAT(step(), IsOk());  // prepares the optimizers
    EXPECT_THAT(model.Waits(step), ::testing::Each(2)) << linked;
  }
}

TEST_P(HostWaitsTest, AStepOfSeveralStagesAndMicroBatchesWaitsTwice) {
  TrainerSpec spec = SpecOf(GetParam());
  spec.stages = {{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:2", "cpu:1", "cpu:0"}}};
  spec.micro_batch = 2;
  OnStreams model(spec, 3, /*linked=*/false);
  const auto step = [&] { return model->Step(Inputs(11), Classes(11)).status(); };
  ASSERT_THAT(step(), IsOk());
  EXPECT_THAT(model.Waits(step), ::testing::Each(2));
}

TEST_P(HostWaitsTest, AnAccumulatedBatchWaitsTwice) {
  OnStreams model(SpecOf(GetParam()), 2, /*linked=*/true);
  const auto accumulate = [&] { return model->ForwardBackward(Inputs(7), Classes(7)).status(); };
  ASSERT_THAT(accumulate(), IsOk());
  EXPECT_THAT(model.Waits(accumulate), ::testing::Each(2));
}

TEST_P(HostWaitsTest, InputsTargetsAndNumbersUsePinnedMemory) {
  OnStreams model(SpecOf(GetParam()), 2, /*linked=*/true);
  ASSERT_THAT(model->Step(Inputs(7), Classes(7)), IsOk());
  const int before = model.pinned_allocations();
  ASSERT_THAT(model->Step(Inputs(7), Classes(7)), IsOk());
  // Two chunks of the input, the target, and the numbers of the primary: loss, range, norm.
  EXPECT_EQ(model.pinned_allocations() - before, 4);
}

TEST_P(HostWaitsTest, StagedInputsChangeNoBits) {
  OnStreams model(SpecOf(GetParam()), 3, /*linked=*/false);
  TrainedModule plain(TwoStages(), 3, SpecOf(GetParam()));
  for (int step = 0; step < 5; ++step) {
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult ours, model->Step(Inputs(7), Classes(7)));
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult theirs, plain.Step(Inputs(7), Classes(7)));
    EXPECT_EQ(ours.loss, theirs.loss);
    EXPECT_EQ(ours.gradient_norm, theirs.gradient_norm);
  }
  ExpectSameState(model->state(), plain.state(), 0);
}

}  // namespace
}  // namespace braid
