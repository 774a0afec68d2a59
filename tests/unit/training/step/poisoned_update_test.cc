// Tests faults of a device in a step: before the update nothing changes; during the update the
// model becomes poisoned, and a snapshot restores it.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

// A model on a CPU slot and a device whose faults the test makes.
class OnFaultyDevice {
 public:
  explicit OnFaultyDevice(const TrainerSpec& spec) {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(MakeCpuDevice(/*threads=*/1));
    auto fake = std::make_unique<FakeDevice>();
    device_ = fake.get();
    devices.push_back(std::move(fake));
    trained_ = std::make_unique<TrainedModule>(
        Mlp(), std::make_unique<WorkerFleet>(std::move(devices)), spec);
  }
  TrainedModule& operator*() { return *trained_; }
  TrainedModule* operator->() { return trained_.get(); }
  FakeDevice& device() { return *device_; }

 private:
  FakeDevice* device_;
  std::unique_ptr<TrainedModule> trained_;
};

TrainerSpec SpecOf(SyncMode sync) {
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.05});
  spec.sync = sync;
  spec.clipping.max_norm = 0.5;
  return spec;
}

class PoisonedUpdateTest : public ::testing::TestWithParam<SyncMode> {};
INSTANTIATE_TEST_SUITE_P(Syncs, PoisonedUpdateTest,
                         ::testing::Values(SyncMode::kReduceBroadcast, SyncMode::kAllReduce));

// How often a step after a snapshot waits for the device, once all is prepared.
int WaitsOfAStep(const TrainerSpec& spec) {
  OnFaultyDevice model(spec);
  EXPECT_THAT(model->Step(Inputs(7), Classes(7)), IsOk());
  EXPECT_THAT((*model)->Snapshot(), IsOk());
  const int before = model.device().synchronized();
  EXPECT_THAT(model->Step(Inputs(7), Classes(7)), IsOk());
  return model.device().synchronized() - before;
}

TEST_P(PoisonedUpdateTest, AFaultChangesNothingOrPoisonsTheModel) {
  const int waits = WaitsOfAStep(SpecOf(GetParam()));
  int poisoned = 0;
  for (int wait = 1; wait <= waits; ++wait) {
    OnFaultyDevice model(SpecOf(GetParam()));
    TrainedModule spared(Mlp(), 2, SpecOf(GetParam()));
    for (TrainedModule* each : {&*model, &spared}) {
      ASSERT_THAT(each->Step(Inputs(7), Classes(7)), IsOk());
    }
    BRAID_ASSERT_OK_AND_ASSIGN(const TrainingSnapshot snapshot, (*model)->Snapshot());
    model.device().FailOnceAfter(wait);
    EXPECT_THAT(model->Step(Inputs(5), Classes(5)),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("the device is lost")));
    if ((*model)->poisoned()) {
      ++poisoned;
      ASSERT_THAT((*model)->Restore(snapshot), IsOk());
      EXPECT_FALSE((*model)->poisoned());
    } else {
      EXPECT_EQ(poisoned, 0) << "after an update had begun";
    }
    EXPECT_EQ((*model)->accumulated(), 0);
    ExpectSameState(model->state(), spared.state(), 0);
    for (TrainedModule* each : {&*model, &spared}) {
      ASSERT_THAT(each->Step(Inputs(5), Classes(5)), IsOk());
    }
    ExpectSameState(model->state(), spared.state(), 0);
  }
  EXPECT_GE(poisoned, 1);  // at the last one at least
  EXPECT_LT(poisoned, waits);
}

TEST_P(PoisonedUpdateTest, AFaultInASeparateUpdatePoisonsTheModel) {
  OnFaultyDevice model(SpecOf(GetParam()));
  ASSERT_THAT(model->Step(Inputs(7), Classes(7)), IsOk());
  ASSERT_THAT(model->ForwardBackward(Inputs(7), Classes(7)), IsOk());
  model.device().FailOnceAfter(1);
  EXPECT_THAT(model->Update(), StatusIs(absl::StatusCode::kInternal, HasSubstr("lost")));
  EXPECT_TRUE((*model)->poisoned());
}

}  // namespace
}  // namespace braid
