#include "server/devices/nccl_communicator.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/run_on.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr NcclCommunicator::Options kPatient = {.interval = absl::Milliseconds(1)};
constexpr NcclCommunicator::Options kImpatient = {.deadline = absl::Milliseconds(20),
                                                  .interval = absl::Milliseconds(1)};

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  NcclCommunicatorTest() { cuda_.nccl = &nccl_; }

  static std::vector<std::unique_ptr<Device>> Gpus() {
    std::vector<std::unique_ptr<Device>> devices;
    for (c10::DeviceIndex gpu = 0; gpu < 2; ++gpu) {
      devices.push_back(std::make_unique<FakeDevice>(c10::Device(c10::kCUDA, gpu)));
    }
    return devices;
  }
  std::unique_ptr<NcclCommunicator> Make(const NcclCommunicator::Options& options) {
    auto made = NcclCommunicator::Create(fleet_.workers(), cuda_, options);
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }
  bool healthy() const { return fleet_.worker(0).healthy() && fleet_.worker(1).healthy(); }

  FakeNccl nccl_;
  FakeCudaBackend cuda_{2};
  const WorkerFleet fleet_{Gpus()};
  const std::vector<at::Tensor> tensors_ = {at::full({2}, 1.0), at::full({2}, 10.0)};
};

TEST_F(NcclCommunicatorTest, SumsAndBroadcasts) {
  const auto collectives = Make(kPatient);
  EXPECT_THAT(collectives->Reduce(tensors_), IsOk());
  EXPECT_TRUE(at::equal(tensors_[0], at::full({2}, 11.0)));
  EXPECT_THAT(collectives->Broadcast(tensors_), IsOk());
  EXPECT_TRUE(at::equal(tensors_[1], at::full({2}, 11.0)));
  EXPECT_THAT(collectives->AllReduce(tensors_), IsOk());
  EXPECT_TRUE(at::equal(tensors_[1], at::full({2}, 22.0)));
  EXPECT_GT(fleet_.worker(1).busy(Phase::kReduce), absl::ZeroDuration());
  EXPECT_GT(fleet_.worker(1).busy(Phase::kBroadcast), absl::ZeroDuration());
}

TEST_F(NcclCommunicatorTest, DoesNotCountTheCallersTimeTwice) {
  static_cast<FakeDevice&>(fleet_.worker(0).device()).time = absl::ZeroDuration();
  const auto collectives = Make(kPatient);
  EXPECT_THAT(RunOnEach({&fleet_.worker(0)}, Phase::kReduce,
                        [&](size_t) { return collectives->Reduce(tensors_); }),
              IsOk());
  EXPECT_EQ(fleet_.worker(0).busy(Phase::kReduce), absl::ZeroDuration());
  EXPECT_GT(fleet_.worker(1).busy(Phase::kReduce), absl::ZeroDuration());
}

TEST_F(NcclCommunicatorTest, AbortsACollectiveThatMissesItsDeadline) {
  const auto collectives = Make(kImpatient);
  nccl_.set_hang(FakeNccl::Hang::kUnderWay);
  EXPECT_THAT(collectives->AllReduce(tensors_),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("cpu:0, cpu:1"), HasSubstr("did not end within 20ms"))));
  EXPECT_FALSE(fleet_.worker(0).healthy());
  EXPECT_FALSE(fleet_.worker(1).healthy());
  EXPECT_TRUE(at::equal(tensors_[0], at::full({2}, 1.0)));
}

TEST_F(NcclCommunicatorTest, AbortsACollectiveThatIsStuckAtItsStart) {
  const auto collectives = Make(kImpatient);
  nccl_.set_hang(FakeNccl::Hang::kBeginning);
  EXPECT_THAT(collectives->Reduce(tensors_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("collective")));
  EXPECT_FALSE(healthy());
}

TEST_F(NcclCommunicatorTest, AbortsOverlappedSumsThatFail) {
  const auto collectives = Make(kPatient);
  nccl_.set_hang(FakeNccl::Hang::kUnderWay);
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(collectives->MarkReady(rank, 0), IsOk());
  }
  EXPECT_THAT(collectives->BeginSum(0, tensors_, /*all=*/false), IsOk());
  nccl_.set_running_fault(absl::InternalError("ncclCommGetAsyncError: remote error"));
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(collectives->EndSums(rank),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("remote error")));
  }
  EXPECT_FALSE(healthy());
}

TEST_F(NcclCommunicatorTest, AbortsAFailedCollectiveBeforeItsDeadline) {
  const auto collectives = Make(kPatient);
  nccl_.set_hang(FakeNccl::Hang::kUnderWay);
  nccl_.set_running_fault(absl::InternalError("cudaStreamQuery: unspecified launch failure"));
  EXPECT_THAT(collectives->Broadcast(tensors_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("unspecified launch failure")));
  EXPECT_FALSE(healthy());
}

TEST_F(NcclCommunicatorTest, AbortsIfACollectiveCannotStart) {
  const auto collectives = Make(kPatient);
  nccl_.set_begin_fault(absl::InternalError("ncclGroupEnd: unhandled cuda error"));
  EXPECT_THAT(collectives->Broadcast(tensors_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("unhandled")));
  EXPECT_TRUE(Eventually([&] { return nccl_.aborted() == 1 && !healthy(); }));
}

TEST_F(NcclCommunicatorTest, AnUnsupportedDtypeIsNotAFault) {
  const auto collectives = Make(kPatient);
  nccl_.set_begin_fault(absl::UnimplementedError("NCCL does not support dtype ComplexFloat"));
  EXPECT_THAT(collectives->Broadcast(tensors_),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("dtype")));
  nccl_.set_begin_fault(absl::OkStatus());
  EXPECT_THAT(collectives->Broadcast(tensors_), IsOk());
  EXPECT_TRUE(healthy());
}

TEST_F(NcclCommunicatorTest, StartsNothingAfterAnAbort) {
  const auto collectives = Make(kImpatient);
  nccl_.set_hang(FakeNccl::Hang::kUnderWay);
  EXPECT_THAT(collectives->Reduce(tensors_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("collective")));
  nccl_.set_hang(FakeNccl::Hang::kNever);
  EXPECT_THAT(collectives->Reduce(tensors_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("collective")));
  EXPECT_EQ(nccl_.begun(), 1);
}

TEST_F(NcclCommunicatorTest, SerializesInitializationStartAndDestruction) {
  const auto work = [&] {
    const std::vector<at::Tensor> tensors = {at::ones({1}), at::ones({1})};
    for (int i = 0; i < 20; ++i) {
      const auto collectives = Make(kPatient);
      EXPECT_THAT(collectives->AllReduce(tensors), IsOk());
      EXPECT_THAT(collectives->BeginSum(0, tensors, /*all=*/true), IsOk());
      EXPECT_THAT(collectives->EndSums(0), IsOk());
    }
  };
  {
    const std::jthread other(work);
    work();
  }
  EXPECT_EQ(nccl_.most_inside(), 1);
  EXPECT_EQ(nccl_.begun(), 80);
}

}  // namespace
}  // namespace braid
