#include "server/training/trainer/job_gate.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using Turn = JobGate::Turn;

// After such a step of a job, the next one waits for up to 3.8 s.
constexpr absl::Duration kStep = absl::Milliseconds(200);

const std::vector<std::string> kGpu = {"cuda:0"};
const std::vector<std::string> kOtherGpu = {"cuda:1"};
const std::vector<std::string> kBothGpus = {"cuda:0", "cuda:1"};
const std::vector<std::string> kCpu = {"cpu:0"};

// Returns how long an operation of a job waits for its turn.
absl::Duration JobWaits(JobGate& gate, const std::vector<std::string>& devices) {
  const absl::Time start = absl::Now();
  const Turn turn(gate, devices, /*of_job=*/true);
  return absl::Now() - start;
}

class JobGateTest : public testing::Test {
 protected:
  // Lets a job use the devices for `time`.
  void RunJobStep(absl::Duration time) {
    const Turn turn(gate_, kBothGpus, /*of_job=*/true);
    absl::SleepFor(time);
  }

  JobGate gate_{{"cuda:0", "cuda:1"}};
};

TEST_F(JobGateTest, JobsStartAtOnceWithoutClients) {
  RunJobStep(kStep);
  EXPECT_LT(JobWaits(gate_, kBothGpus), absl::Milliseconds(500));
}

TEST_F(JobGateTest, JobsWaitUntilClientsHaveBeenIdle) {
  RunJobStep(kStep);
  std::optional<Turn> client(std::in_place, gate_, kGpu, /*of_job=*/false);
  absl::Time started;
  std::thread job([&] {
    const Turn turn(gate_, kBothGpus, /*of_job=*/true);
    started = absl::Now();
  });
  absl::SleepFor(absl::Milliseconds(50));
  const absl::Time ended = absl::Now();
  client.reset();
  job.join();
  EXPECT_GE(started, ended + JobGate::kQuietTime);
  EXPECT_LT(started, ended + absl::Seconds(5));
}

TEST_F(JobGateTest, JobsWaitBetweenTwoStepsOfAClient) {
  RunJobStep(kStep);
  const absl::Time start = absl::Now();
  { const Turn client(gate_, kGpu, /*of_job=*/false); }
  const Turn job(gate_, kGpu, /*of_job=*/true);
  EXPECT_GE(absl::Now() - start, JobGate::kQuietTime);
}

TEST_F(JobGateTest, JobsGetATwentiethOfTheTimeNextToBusyClients) {
  const absl::Time start = absl::Now();
  RunJobStep(absl::Milliseconds(10));
  const Turn client(gate_, kGpu, /*of_job=*/false);
  EXPECT_LT(JobWaits(gate_, kGpu), JobGate::kMaxWait);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(10) * 20);
}

TEST_F(JobGateTest, JobsDoNotWaitForClientsOnOtherDevices) {
  RunJobStep(kStep);
  const Turn client(gate_, kGpu, /*of_job=*/false);
  EXPECT_LT(JobWaits(gate_, kOtherGpu), absl::Milliseconds(500));
}

TEST_F(JobGateTest, JobsDoNotWaitOnDevicesWithSeparateWorkers) {
  { const Turn job(gate_, kCpu, /*of_job=*/true); }
  const Turn client(gate_, kCpu, /*of_job=*/false);
  EXPECT_LT(JobWaits(gate_, kCpu), absl::Milliseconds(500));
}

TEST_F(JobGateTest, ClientsNeverWait) {
  RunJobStep(kStep);
  const Turn job(gate_, kGpu, /*of_job=*/true);
  const absl::Time start = absl::Now();
  const Turn client(gate_, kGpu, /*of_job=*/false);
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(500));
}

}  // namespace
}  // namespace braid
