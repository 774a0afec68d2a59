#include "server/batching/background_queue.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "tests/fakes/filled_queue.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;
using Tensors = std::vector<at::Tensor>;

std::shared_ptr<BackgroundQueue> MakeBackground(std::shared_ptr<BatchQueue> version,
                                                Metrics* metrics, int64_t max_rows = 0) {
  auto queue = std::make_shared<BackgroundQueue>(std::move(version), max_rows, metrics);
  queue->Start();
  return queue;
}

// Sends one request and waits for its result.
absl::StatusOr<InferenceResult> Infer(BackgroundQueue* queue, const HostTensor& input) {
  PendingInference pending;
  queue->Push(MakeRequest(input, &pending));
  return pending.Wait();
}

class BackgroundQueueTest : public FilledQueueTest {
 protected:
  void StartJob(ModelConfig config, const PuppetReplica::Function& forward) {
    Start(std::move(config), forward);
    job_ = MakeBackground(queue_, fleet_.metrics());
  }
  PendingInference& PushJob(const HostTensor& input) {
    pending_.push_back(std::make_unique<PendingInference>());
    job_->Push(MakeRequest(input, pending_.back().get(), absl::InfiniteFuture(),
                           queue_->config().batched()));
    return *pending_.back();
  }

  std::shared_ptr<BackgroundQueue> job_;
};

TEST_F(BackgroundQueueTest, RequestsOfClientsGoFirst) {
  std::atomic<bool> pushed = false;
  StartJob(PuppetConfig(16), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    // Another request arrives while the job's first batch runs.
    if (inputs[0].size(0) != 5 && !pushed.exchange(true)) {
      Push(MakeRows("x", 5, 50));
    }
    return Doubling(&seen_)(inputs);
  });
  const auto& job = PushJob(MakeRows("x", 3, 0));
  Push(MakeRows("x", 5, 100));
  Open();
  ASSERT_THAT(job.Wait(), IsOk());
  EXPECT_EQ(ValuesOf<float>(job.Wait()->outputs[0]), Doubled(MakeRows("x", 3, 0)));
  EXPECT_THAT(seen_.rows(), ElementsAre(5, 1, 5, 1, 1));
}

TEST_F(BackgroundQueueTest, TakesAtMostSoManyRowsAsItsUserAllows) {
  Start(PuppetConfig(16), Doubling(&seen_));
  job_ = MakeBackground(queue_, fleet_.metrics(), /*max_rows=*/2);
  PushJob(MakeRows("x", 50, 0));
  Open();
  ASSERT_THAT(pending_.back()->Wait(), IsOk());
  EXPECT_THAT(seen_.rows(), Each(Le(2)));
}

// A worker whose clock the test sets. At first, it has had no other work.
class BackgroundQueueClockTest : public ::testing::Test {
 protected:
  void StartJob(ModelConfig config, const PuppetReplica::Function& forward) {
    std::vector<std::unique_ptr<Replica>> replicas;
    replicas.push_back(std::make_unique<PuppetReplica>(forward));
    queue_ = MakeBackground(
        std::make_shared<BatchQueue>(std::move(config), /*version=*/1,
                                     ReplicaSet({&worker_}, std::move(replicas)), &metrics_),
        &metrics_);
  }
  ~BackgroundQueueClockTest() override { worker_.Stop(); }

  ManualClock clock_;
  Metrics metrics_;
  Worker worker_{{"cpu:0", 0.25, &clock_, &metrics_}, MakeCpuDevice(1)};
  Seen seen_;
  std::shared_ptr<BackgroundQueue> queue_;
};

TEST_F(BackgroundQueueClockTest, FindsTheBatchesThatMeasureBest) {
  ModelConfig config = PuppetConfig(16);
  config.batching_declared = true;
  StartJob(config, [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    absl::SleepFor(absl::Microseconds(500));  // for any number of rows
    return Doubling(&seen_)(inputs);
  });
  EXPECT_EQ(queue_->request_rows(), 2);
  const HostTensor rows = MakeRows("x", 500, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult result, Infer(queue_.get(), rows));
  EXPECT_EQ(ValuesOf<float>(result.outputs[0]), Doubled(rows));
  EXPECT_THAT(seen_.rows(), AllOf(Each(Le(16)), Contains(16).Times(Ge(10))));
  EXPECT_EQ(queue_->request_rows() % 16, 0);
}

TEST_F(BackgroundQueueClockTest, OnlyAConfiguredBatchSizeIsALimit) {
  ModelConfig config = PuppetConfig(4);
  config.max_rows = 16;
  StartJob(config, [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    absl::SleepFor(absl::Microseconds(500));
    return Doubling(&seen_)(inputs);
  });
  ASSERT_THAT(Infer(queue_.get(), MakeRows("x", 300, 0)), IsOk());
  EXPECT_THAT(seen_.rows(), AllOf(Each(Le(16)), Contains(16)));
}

TEST_F(BackgroundQueueClockTest, BatchesAreShortWhileWorkersHaveOtherWork) {
  StartJob(PuppetConfig(64), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    absl::SleepFor(absl::Milliseconds(4) + inputs[0].size(0) * absl::Milliseconds(1));
    return Doubling(&seen_)(inputs);
  });
  { const WorkerBlock task(worker_); }
  ASSERT_THAT(Infer(queue_.get(), MakeRows("x", 40, 0)), IsOk());
  EXPECT_THAT(seen_.rows(), Each(Le(8)));  // 2 rows take 6 ms, 8 rows 12 ms, 16 rows 20 ms
  clock_.Advance(absl::Seconds(2));
  // Durations are measured: on a busy machine, it may take a while to try a larger size.
  const auto largest = [&] {
    const std::vector<int64_t> rows = seen_.rows();
    return *std::max_element(rows.begin(), rows.end());
  };
  for (int i = 0; i < 100 && largest() < 16; ++i) {
    ASSERT_THAT(Infer(queue_.get(), MakeRows("x", 64, 0)), IsOk());
  }
  EXPECT_GE(largest(), 16);
}

TEST(BackgroundQueueDevicesTest, AllWorkersTakeRows) {
  WorkerFleet fleet(3);
  std::atomic<int> calls = 0;
  std::latch together(3);
  const auto version =
      MakeQueue(&fleet, PuppetConfig(16), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
        if (calls++ < 3) {
          together.arrive_and_wait();  // hangs unless three workers run at the same time
        }
        return Tensors{inputs[0] * 2};
      });
  const auto queue = MakeBackground(version, fleet.metrics());
  const HostTensor rows = MakeRows("x", 100, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult result, Infer(queue.get(), rows));
  EXPECT_EQ(ValuesOf<float>(result.outputs[0]), Doubled(rows));
  EXPECT_EQ(result.version, 1);
}

// Otherwise a large request would run on the worker that is free first, alone.
TEST(BackgroundQueueDevicesTest, RequestsOfClientsAreSplitOverWorkersThatRunAJob) {
  WorkerFleet fleet(2);
  std::latch job_runs(2);
  absl::Notification pushed;
  std::latch together(2);
  const auto version =
      MakeQueue(&fleet, PuppetConfig(1000), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
        if (inputs[0].size(0) == 1) {
          job_runs.count_down();
          pushed.WaitForNotification();
        } else {
          together.arrive_and_wait();
        }
        return inputs;
      });
  const auto queue = MakeBackground(version, fleet.metrics());
  PendingInference job;
  PendingInference request;
  queue->Push(MakeRequest(MakeRows("x", 2, 0), &job));
  job_runs.wait();
  ASSERT_THAT(version->Push(MakeRequest(MakeRows("x", 1000, 0), &request)), IsOk());
  pushed.Notify();
  ASSERT_THAT(request.Wait(), IsOk());
  EXPECT_EQ(request.Wait()->chunks.size(), 2);
  EXPECT_THAT(job.Wait(), IsOk());
}

TEST_F(BackgroundQueueTest, AnErrorFailsItsRequestOnly) {
  StartJob(PuppetConfig(16), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    seen_.Add(inputs[0]);
    if (inputs[0].max().item<float>() == 7) {
      return absl::InternalError("not 7");
    }
    return inputs;
  });
  const auto& bad = PushJob(MakeRows("x", 100, 5));
  const auto& good = PushJob(MakeRows("x", 2, 50));
  Open();
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not 7")));
  EXPECT_THAT(good.Wait(), IsOk());
  EXPECT_EQ(seen_.rows().size(), 5);  // The rest of the bad request does not run.
}

TEST_F(BackgroundQueueTest, TakesSmallerBatchesWhenMemoryRunsOut) {
  std::atomic<int> failures = 0;
  StartJob(PuppetConfig(64), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    if (inputs[0].size(0) > 1) {
      ++failures;
      return absl::ResourceExhaustedError("out of memory");
    }
    return Doubling(&seen_)(inputs);
  });
  const HostTensor rows = MakeRows("x", 30, 0);
  const auto& job = PushJob(rows);
  Open();
  ASSERT_THAT(job.Wait(), IsOk());
  EXPECT_EQ(ValuesOf<float>(job.Wait()->outputs[0]), Doubled(rows));
  EXPECT_EQ(failures.load(), 1);
  EXPECT_THAT(seen_.rows(), SizeIs(30));
}

TEST_F(BackgroundQueueTest, OneRowThatDoesNotFitIsAnError) {
  StartJob(PuppetConfig(64), [](const Tensors&) -> absl::StatusOr<Tensors> {
    return absl::ResourceExhaustedError("out of memory");
  });
  const auto& job = PushJob(MakeRows("x", 3, 0));
  Open();
  EXPECT_THAT(job.Wait(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory")));
}

TEST_F(BackgroundQueueTest, AModelThatDoesNotMergeRequestsRunsThemWhole) {
  ModelConfig config = PuppetConfig(16);
  config.row_independence = RowIndependence::kDependent;
  StartJob(config, Doubling(&seen_));
  PendingInference pending;
  job_->Push(MakeRequest(MakeRows("x", 40, 0), &pending, absl::InfiniteFuture(),
                         /*batched=*/false));
  Open();
  ASSERT_THAT(pending.Wait(), IsOk());
  EXPECT_THAT(seen_.rows(), ElementsAre(40));
}

TEST_F(BackgroundQueueTest, KeepsItsVersionAlive) {
  StartJob(PuppetConfig(8), Doubling(&seen_));
  const std::weak_ptr<BatchQueue> watch = queue_;
  const auto& job = PushJob(MakeRows("x", 20, 0));
  queue_.reset();
  Open();
  EXPECT_THAT(job.Wait(), IsOk());
  EXPECT_FALSE(watch.expired());
  job_.reset();
  const WorkerBlock idle(fleet_.worker(0));  // it has let go of the last batch
  EXPECT_TRUE(watch.expired());
}

TEST_F(BackgroundQueueTest, CountsItsRowsApart) {
  StartJob(PuppetConfig(16), Doubling(&seen_));
  const auto& job = PushJob(MakeRows("x", 20, 0));
  Open();
  ASSERT_THAT(job.Wait(), IsOk());
  EXPECT_THAT(
      prometheus::TextSerializer().Serialize(fleet_.metrics()->registry()->Collect()),
      AllOf(HasSubstr("braid_job_samples_total{model=\"m\"} 20"),
            HasSubstr("braid_device_samples_total{device=\"cpu:0\",work=\"job\"} 20"),
            HasSubstr("braid_inference_samples_total{model=\"m\"} 0"),
            HasSubstr("braid_queue_duration_seconds_count{model=\"m\"} 0"),
            HasSubstr("braid_batch_size_rows_count{model=\"m\"} 0"),
            Not(HasSubstr(
                "braid_device_queue_duration_seconds_count{device=\"cpu:0\",work=\"job\"}"))));
  EXPECT_EQ(queue_->statistics().counts().batches, 0);
}

}  // namespace
}  // namespace braid
