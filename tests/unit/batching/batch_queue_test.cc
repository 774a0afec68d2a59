#include "server/batching/batch_queue.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/models/name_binding.h"
#include "tests/fakes/fake_decoder.h"
#include "tests/fakes/filled_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using Tensors = std::vector<at::Tensor>;

// Sends requests of random sizes, a few at a time, and checks the answers.
void SendRandomRequests(BatchQueue* queue, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> rows(1, 60);
  for (int round = 0; round < 20; ++round) {
    std::vector<HostTensor> inputs;
    std::vector<PendingInference> pending(4);
    for (PendingInference& answer : pending) {
      inputs.push_back(MakeRows("x", rows(random), seed * 10000.0 + round * 100.0));
      ASSERT_THAT(queue->Push(MakeRequest(inputs.back(), &answer)), IsOk());
    }
    for (size_t i = 0; i < pending.size(); ++i) {
      const auto& result = pending[i].Wait();
      ASSERT_THAT(result, IsOk());
      EXPECT_EQ(ValuesOf<float>(result->outputs[0]), Doubled(inputs[i]));
      int64_t reported = 0;
      for (const ChunkReport& chunk : result->chunks) {
        reported += chunk.rows;
      }
      EXPECT_EQ(reported, inputs[i].rows());
    }
  }
}

TEST(BatchQueueTest, RowsKeepTheirOrderAcrossMergesAndSplits) {
  for (const int workers : {1, 2, 3}) {
    WorkerFleet fleet(workers);
    Seen seen;
    const auto queue = MakeQueue(&fleet, PuppetConfig(16), Doubling(&seen));
    std::vector<std::thread> clients;
    for (unsigned c = 0; c < 4; ++c) {
      clients.emplace_back([&queue, c] { SendRandomRequests(queue.get(), c); });
    }
    for (std::thread& client : clients) {
      client.join();
    }
    EXPECT_THAT(seen.rows(), Each(Le(16)));
  }
}

// A worker that runs a short batch must pick up rows that did not wake another worker.
TEST(BatchQueueTest, ShortBatchesLeaveNoRequestWaiting) {
  WorkerFleet fleet(2);
  Seen seen;
  // With two models, a worker may take a batch of the other one first.
  const std::vector<std::shared_ptr<BatchQueue>> queues = {
      MakeQueue(&fleet, PuppetConfig(16), Doubling(&seen)),
      MakeQueue(&fleet, PuppetConfig(16), Doubling(&seen))};
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 4; ++c) {
    clients.emplace_back([&queues, c] {
      for (int64_t i = 0; i < 1000; ++i) {
        PendingInference answer;
        const HostTensor input = MakeRows("x", 1 + i % 5, 0);
        const RunMode mode = c < 2 ? RunMode::kOnWorker : RunMode::kMayRunInline;
        ASSERT_THAT(queues[c % 2]->Push(MakeRequest(input, &answer), mode), IsOk());
        ASSERT_THAT(answer.Wait(), IsOk());  // hangs, if nobody comes for it
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
}

// Sends requests of one row, one at a time, until one runs on this thread. Returns false if none
// does within `patience`.
bool RunsHere(BatchQueue* queue, const std::atomic<std::thread::id>& thread,
              absl::Duration patience) {
  for (const absl::Time end = absl::Now() + patience; absl::Now() < end;) {
    PendingInference answer;
    EXPECT_THAT(queue->Push(MakeRequest(MakeRows("x", 1, 0), &answer), RunMode::kMayRunInline),
                IsOk());
    const bool answered = answer.answered();
    EXPECT_THAT(answer.Wait(), IsOk());
    if (thread.load() == std::this_thread::get_id()) {
      EXPECT_TRUE(answered);
      return true;
    }
  }
  return false;
}

TEST(BatchQueueTest, OnlyShortRequestsRunInline) {
  for (const bool brief : {true, false}) {
    WorkerFleet fleet(2);
    std::atomic<std::thread::id> thread;
    const auto queue =
        MakeQueue(&fleet, PuppetConfig(16), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
          thread = std::this_thread::get_id();
          absl::SleepFor(brief ? absl::ZeroDuration() : absl::Milliseconds(1));
          return inputs;
        });
    // Durations are measured, and a short batch may be slow on a busy machine.
    const absl::Duration patience = brief ? absl::Seconds(60) : absl::Milliseconds(300);
    EXPECT_EQ(RunsHere(queue.get(), thread, patience), brief);
  }
}

TEST(BatchQueueTest, DecodingCountsAsInputAndNotAsTimeInTheQueue) {
  WorkerFleet fleet(1);
  Seen seen;
  const auto queue = MakeQueue(&fleet, PuppetConfig(16), Doubling(&seen));
  InferenceRequest::Schedule schedule;
  schedule.arrival = absl::Now() - absl::Seconds(1000);
  schedule.decoding = absl::Seconds(900);
  PendingInference pending;
  ASSERT_THAT(queue->Push(std::make_shared<InferenceRequest>(
                  std::vector<HostTensor>{MakeRows("x", 2, 0)}, 2, schedule, pending.done())),
              IsOk());
  const auto& result = pending.Wait();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->decoded, schedule.decoding);
  EXPECT_GE(result->queued, absl::Seconds(100));
  EXPECT_LT(result->queued, absl::Seconds(500));
  EXPECT_LT(result->computed, absl::Seconds(500));
  const ModelStatistics::Counts counts = queue->statistics().counts();
  EXPECT_GE(counts.success.total, absl::Seconds(1000));
  EXPECT_EQ(counts.queue.total, result->queued);
  EXPECT_GE(counts.request.copy_in.total, schedule.decoding);
}

TEST(BatchQueueTest, OnlyOrderedModelsWithDecodersOrderArrivals) {
  WorkerFleet fleet(1);
  Seen seen;
  for (const bool ordered : {false, true}) {
    for (const bool decodes : {false, true}) {
      ModelConfig config = PuppetConfig(16);
      config.preserve_ordering = ordered;
      config.inputs[0].decoder = decodes ? std::make_shared<FakeDecoder>(1) : nullptr;
      const auto queue = MakeQueue(&fleet, config, Doubling(&seen));
      EXPECT_EQ(queue->arrivals() != nullptr, ordered && decodes);
    }
  }
}

TEST_F(FilledQueueTest, MergesWaitingRequests) {
  Start(PuppetConfig(16), Doubling(&seen_));
  const auto& first = Push(MakeRows("x", 2, 0));
  const auto& second = Push(MakeRows("x", 3, 10));
  Open();
  EXPECT_THAT(ValuesOf<float>(first.Wait()->outputs[0]), ElementsAre(0, 2));
  EXPECT_THAT(ValuesOf<float>(second.Wait()->outputs[0]), ElementsAre(20, 22, 24));
  EXPECT_THAT(seen_.rows(), ElementsAre(5));
  EXPECT_EQ(first.Wait()->version, 1);
}

TEST_F(FilledQueueTest, FillsABatchWithPartOfAnOversizedRequest) {
  Start(PuppetConfig(16), Doubling(&seen_));
  Push(MakeRows("x", 10, 0));
  const auto& second = Push(MakeRows("x", 10, 100));
  const auto& third = Push(MakeRows("x", 20, 200));
  Open();
  third.Wait();
  EXPECT_THAT(seen_.rows(), ElementsAre(10, 16, 14));
  EXPECT_EQ(ValuesOf<float>(second.Wait()->outputs[0]), Doubled(MakeRows("x", 10, 100)));
  EXPECT_EQ(ValuesOf<float>(third.Wait()->outputs[0]), Doubled(MakeRows("x", 20, 200)));
}

TEST_F(FilledQueueTest, DoesNotMergeDifferentTrailingShapes) {
  Start(PuppetConfig(16), Doubling(&seen_));
  Push(MakeRows("x", 2, 0));
  const auto& wide = Push(MakeHost<float>("x", {1, 2}, {5, 6}));
  const auto& last = Push(MakeRows("x", 3, 0));
  Open();
  last.Wait();
  EXPECT_THAT(ValuesOf<float>(wide.Wait()->outputs[0]), ElementsAre(10, 12));
  EXPECT_THAT(seen_.rows(), ElementsAre(2, 1, 3));
}

TEST_F(FilledQueueTest, ARetiredQueueCompletesItsRequestsAndIsFreed) {
  Start(PuppetConfig(8), Doubling(&seen_));
  for (int i = 0; i < 5; ++i) {
    Push(MakeRows("x", 7, i));
  }
  const std::weak_ptr<BatchQueue> watch = queue_;
  queue_.reset();
  EXPECT_FALSE(watch.expired());
  Open();
  for (const auto& pending : pending_) {
    EXPECT_THAT(pending->Wait(), IsOk());
  }
  const WorkerBlock idle(fleet_.worker(0));  // it has let go of the last batch
  EXPECT_TRUE(watch.expired());
}

TEST_F(FilledQueueTest, QueueMetricsReturnToZero) {
  const auto scrape = [this] {
    return prometheus::TextSerializer().Serialize(fleet_.metrics()->registry()->Collect());
  };
  Start(PuppetConfig(16), Doubling(&seen_));
  const auto& first = Push(MakeRows("x", 20, 0));
  Push(MakeRows("x", 4, 0), absl::UnixEpoch());
  EXPECT_THAT(scrape(), HasSubstr("braid_queue_rows{model=\"m\"} 24"));
  Open();
  first.Wait();
  pending_.back()->Wait();
  const WorkerBlock idle(fleet_.worker(0));
  EXPECT_THAT(scrape(), AllOf(HasSubstr("braid_queue_rows{model=\"m\"} 0"),
                              HasSubstr("braid_inference_samples_total{model=\"m\"} 20"),
                              HasSubstr("braid_queue_duration_seconds_count{model=\"m\"} 1"),
                              HasSubstr("braid_device_samples_total{device=\"cpu:0\","
                                        "work=\"inference\"} 20")));
  EXPECT_EQ(fleet_.worker(0).samples(), 20);
}

TEST_F(FilledQueueTest, AnUnbatchedModelRunsRequestsUnchanged) {
  ModelConfig config = PuppetConfig(0);
  config.max_queue_delay = absl::Hours(1);  // there is nothing to wait for
  Start(config, [this](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    seen_.Add(inputs[0]);
    return Tensors{inputs[0].sum()};
  });
  const auto& first = Push(MakeHost<float>("x", {3}, {1, 2, 3}));
  const auto& second = Push(MakeHost<float>("x", {3}, {4, 5, 6}));
  Open();
  EXPECT_THAT(ValuesOf<float>(first.Wait()->outputs[0]), ElementsAre(6));
  EXPECT_THAT(second.Wait()->outputs[0].shape, ElementsAre());
  EXPECT_THAT(seen_.rows(), ElementsAre(3, 3));
}

TEST_F(FilledQueueTest, AZeroDimOutputIsOneElementPerChunk) {
  Start(PuppetConfig(8),
        [](const Tensors& inputs) -> absl::StatusOr<Tensors> { return Tensors{inputs[0].sum()}; });
  const auto& small = Push(MakeRows("x", 2, 0));
  const auto& large = Push(MakeRows("x", 14, 0));
  Open();
  EXPECT_THAT(ValuesOf<float>(small.Wait()->outputs[0]), ElementsAre(1));
  ASSERT_THAT(large.Wait(), IsOk());
  EXPECT_EQ(large.Wait()->outputs[0].shape[0], static_cast<int64_t>(large.Wait()->chunks.size()));
}

TEST_F(FilledQueueTest, AReshapedZeroDimOutputIsOneRow) {
  ModelConfig config = PuppetConfig(8);
  config.outputs[0].dims = {1};
  config.outputs[0].reshape = std::vector<int64_t>();
  Start(config, [spec = config.outputs[0]](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    return Tensors{FromModel(inputs[0].squeeze(), spec)};
  });
  const auto& one = Push(MakeRows("x", 1, 3));
  const auto& nine = Push(MakeRows("x", 9, 0));
  Open();
  ASSERT_THAT(one.Wait(), IsOk());
  EXPECT_THAT(one.Wait()->outputs[0].shape, ElementsAre(1, 1));
  ASSERT_THAT(nine.Wait(), IsOk());
  EXPECT_THAT(nine.Wait()->outputs[0].shape, ElementsAre(9, 1));
}

TEST_F(FilledQueueTest, AnUnbatchedModelAcceptsAScalar) {
  Start(PuppetConfig(0),
        [](const Tensors& inputs) -> absl::StatusOr<Tensors> { return Tensors{inputs[0] + 1}; });
  const auto& scalar = Push(MakeHost<float>("x", {}, {3}));
  Open();
  const WorkerBlock idle(fleet_.worker(0));  // it has taken all there was
  ASSERT_TRUE(scalar.answered());
  EXPECT_THAT(ValuesOf<float>(scalar.Wait()->outputs[0]), ElementsAre(4));
}

}  // namespace
}  // namespace braid
