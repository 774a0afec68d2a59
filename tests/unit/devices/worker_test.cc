#include "server/devices/worker.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/queue_source.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

TEST(WorkerTest, RunsTasksInOrder) {
  std::vector<int> order;
  {
    const WorkerFleet fleet(1);
    for (int i = 0; i < 3; ++i) {
      fleet.worker(0).Post([&order, i] { order.push_back(i); });
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

TEST(WorkerTest, DestructorRunsPostedTasks) {
  int ran = 0;
  auto fleet = std::make_optional<WorkerFleet>(1);
  {
    const WorkerBlock block(fleet->worker(0));
    for (int i = 0; i < 50; ++i) {
      fleet->worker(0).Post([&ran] { ++ran; });
    }
  }
  fleet.reset();
  EXPECT_EQ(ran, 50);
}

TEST(WorkerTest, EntersItsDeviceOnceBeforeAnyTask) {
  const RealClock clock;
  Metrics metrics;
  auto device = std::make_unique<FakeDevice>();
  const FakeDevice& fake = *device;
  int entered = 0;
  Worker worker({"fake:0", 0.25, &clock, &metrics}, std::move(device));
  absl::Notification done;
  worker.Post([&] {
    entered = fake.entered();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(entered, 1);
}

TEST(WorkerTest, ABusyWorkerIsNotFree) {
  const WorkerFleet fleet(1);
  const WorkerBlock block(fleet.worker(0));
  EXPECT_FALSE(fleet.worker(0).free());
  EXPECT_FALSE(fleet.worker(0).Wake());  // it asks its sources anyway
}

TEST(WorkerTest, RunsBatchesBeforeTasks) {
  const WorkerFleet fleet(1);
  const auto source = std::make_shared<QueueSource>();
  std::vector<const char*> order;
  absl::BlockingCounter done(2);
  {
    const WorkerBlock block(fleet.worker(0));
    fleet.worker(0).Post([&] {
      order.push_back("task");
      done.DecrementCount();
    });
    source->Push([&] {
      order.push_back("batch");
      done.DecrementCount();
    });
    fleet.worker(0).AddSource(source);
  }
  done.Wait();
  EXPECT_THAT(order, ElementsAre(::testing::StrEq("batch"), ::testing::StrEq("task")));
}

TEST(WorkerTest, RunsBackgroundBatchesLast) {
  const WorkerFleet fleet(1);
  const auto source = std::make_shared<QueueSource>();
  const auto background = std::make_shared<QueueSource>();
  std::vector<std::string> order;
  absl::BlockingCounter done(3);
  const auto work = [&](const char* name) {
    return [&, name] {
      order.emplace_back(name);
      done.DecrementCount();
    };
  };
  {
    const WorkerBlock block(fleet.worker(0));
    background->Push(work("background"));
    source->Push(work("batch"));
    fleet.worker(0).AddSource(background, /*background=*/true);
    fleet.worker(0).AddSource(source);
    fleet.worker(0).Post(work("task"));
  }
  done.Wait();
  EXPECT_THAT(order, ElementsAre("batch", "task", "background"));
}

// Records the order of batches from sources that never run out of them.
class EndlessSource final : public WorkSource {
 public:
  EndlessSource(std::string name, std::vector<std::string>* order, absl::FunctionRef<void()> batch)
      : name_(std::move(name)), order_(order), batch_(batch) {}
  Next Take(const Worker& /*worker*/, absl::Time /*now*/) override {
    return Work([this] {
      order_->push_back(name_);
      batch_();
    });
  }

 private:
  const std::string name_;
  std::vector<std::string>* const order_;
  const absl::FunctionRef<void()> batch_;
};

TEST(WorkerTest, BackgroundBatchesGetATwentiethOfABusyWorker) {
  ManualClock clock;
  Metrics metrics;
  std::vector<std::string> order;
  absl::Notification done;
  const auto batch = [&] { clock.Advance(absl::Milliseconds(10)); };
  // The worker measures the real time of a batch.
  const auto background_batch = [&] {
    const absl::Time start = absl::Now();
    while (absl::Now() - start < absl::Milliseconds(2)) {
    }
    if (std::count(order.begin(), order.end(), "background") == 2) {
      done.Notify();
    }
  };
  auto source = std::make_shared<EndlessSource>("batch", &order, batch);
  auto background = std::make_shared<EndlessSource>("background", &order, background_batch);
  Worker worker({"cpu:0", 0.25, &clock, &metrics}, MakeCpuDevice(1));
  {
    const WorkerBlock block(worker);
    worker.AddSource(background, /*background=*/true);
    worker.AddSource(source);
  }
  done.WaitForNotification();
  worker.Stop();
  const auto first = std::find(order.begin(), order.end(), "background");
  EXPECT_EQ(first - order.begin(), 10);                                   // after 100 ms
  EXPECT_GE(std::find(first + 1, order.end(), "background") - first, 5);  // after 38 ms or more
}

TEST(WorkerTest, BackgroundBatchesGetTheirShareWhileTasksWait) {
  ManualClock clock;
  Metrics metrics;
  std::vector<std::string> order;
  absl::Notification done;
  const auto background = std::make_shared<QueueSource>();
  Worker worker({"cpu:0", 0.25, &clock, &metrics}, MakeCpuDevice(1));
  {
    const WorkerBlock block(worker);
    background->Push([&] { order.emplace_back("background"); });
    worker.AddSource(background, /*background=*/true);
    worker.Post([&] {
      order.emplace_back("task");
      clock.Advance(absl::Milliseconds(100));
    });
    worker.Post([&] {
      order.emplace_back("task");
      done.Notify();
    });
  }
  done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre("task", "background", "task"));
}

TEST(WorkerTest, BackgroundBatchesWaitForTheWorkerForTraining) {
  ManualClock clock;
  Metrics metrics;
  Worker training({"cpu:0", 0.25, &clock, &metrics}, MakeCpuDevice(1));
  Worker worker({"cpu:0", 0.25, &clock, &metrics}, MakeCpuDevice(1), &training);
  const auto source = std::make_shared<QueueSource>();
  const auto background = std::make_shared<QueueSource>();
  worker.AddSource(background, /*background=*/true);
  worker.AddSource(source);
  std::vector<std::string> order;
  absl::Notification batch_done;
  absl::Notification background_done;
  {
    const WorkerBlock step(training);
    background->Push([&] {
      order.emplace_back("background");
      background_done.Notify();
    });
    worker.Wake();
    source->Push([&] {
      order.emplace_back("batch");
      batch_done.Notify();
    });
    worker.Wake();
    batch_done.WaitForNotification();
    clock.Advance(absl::Seconds(7));
    EXPECT_EQ(worker.last_foreground(), clock.Now());
  }
  background_done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre("batch", "background"));
  worker.Stop();
}

TEST(WorkerTest, KnowsWhenItLastHadForegroundWork) {
  ManualClock clock;
  clock.Advance(absl::Hours(7));
  Metrics metrics;
  const auto source = std::make_shared<QueueSource>();
  const auto background = std::make_shared<QueueSource>();
  Worker worker({"cpu:0", 0.25, &clock, &metrics}, MakeCpuDevice(1));
  worker.AddSource(source);
  worker.AddSource(background, /*background=*/true);
  // Runs work and returns the time of the last foreground work, and whether the worker is free.
  const auto run = [&](absl::FunctionRef<void(Worker::Task)> add) {
    absl::Notification done;
    std::pair<absl::Time, bool> seen;
    add([&] {
      seen = {worker.last_foreground(), worker.free()};
      done.Notify();
    });
    worker.Wake();
    done.WaitForNotification();
    return seen;
  };
  const absl::Time start = clock.Now();
  const auto [never, free] = run([&](Worker::Task work) { background->Push(std::move(work)); });
  EXPECT_LT(never, start - absl::Hours(24 * 365));
  EXPECT_TRUE(free);
  EXPECT_EQ(run([&](Worker::Task work) { worker.Post(std::move(work)); }), std::pair(start, false));
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(run([&](Worker::Task work) { source->Push(std::move(work)); }),
            std::pair(start + absl::Seconds(1), false));
}

// Source of batches of about a millisecond that it shares with other sources.
class BusySource final : public WorkSource {
 public:
  struct Batches {
    int left = 200;
    absl::Notification done;
  };
  BusySource(double weight, Batches* batches) : weight_(weight), batches_(batches) {}

  Next Take(const Worker& /*worker*/, absl::Time /*now*/) override {
    if (batches_->left == 0) {
      return absl::InfiniteFuture();
    }
    return Work([this] {
      const absl::Time start = absl::Now();
      while (absl::Now() - start < absl::Milliseconds(1)) {
      }
      time_ += absl::Now() - start;
      if (--batches_->left == 0) {
        batches_->done.Notify();
      }
    });
  }
  double weight() const override { return weight_; }
  absl::Duration time() const { return time_; }

 private:
  // Used by the worker until it is done, except `weight_`.
  const double weight_;
  Batches* const batches_;
  absl::Duration time_;
};

// Returns the ratio of the times that sources with the weights `first` and `second` get.
double TimeRatio(double first, double second) {
  BusySource::Batches batches;
  const auto heavy = std::make_shared<BusySource>(first, &batches);
  const auto light = std::make_shared<BusySource>(second, &batches);
  const WorkerFleet fleet(1);
  {
    const WorkerBlock block(fleet.worker(0));
    fleet.worker(0).AddSource(heavy);
    fleet.worker(0).AddSource(light);
  }
  batches.done.WaitForNotification();
  return absl::FDivDuration(heavy->time(), light->time());
}

TEST(WorkerTest, SharesTimeEvenlyBetweenSources) { EXPECT_NEAR(TimeRatio(1, 1), 1, 0.3); }

TEST(WorkerTest, SharesTimeBetweenSourcesByWeight) { EXPECT_NEAR(TimeRatio(6, 2), 3, 0.8); }

TEST(WorkerTest, SkipsDestroyedSources) {
  const WorkerFleet fleet(1);
  auto gone = std::make_shared<QueueSource>();
  const auto source = std::make_shared<QueueSource>();
  absl::Notification done;
  {
    const WorkerBlock block(fleet.worker(0));
    fleet.worker(0).AddSource(gone);
    fleet.worker(0).AddSource(source);
    gone.reset();
    source->Push([&] { done.Notify(); });
  }
  done.WaitForNotification();
}

// Source that records when it was asked.
class TimeSource final : public WorkSource {
 public:
  explicit TimeSource(absl::Notification* asked) : asked_(asked) {}
  Next Take(const Worker&, absl::Time now) override {
    if (!asked_->HasBeenNotified()) {
      time_ = now;
      asked_->Notify();
    }
    return absl::InfiniteFuture();
  }
  absl::Time time() const { return time_; }

 private:
  absl::Notification* const asked_;
  absl::Time time_;
};

TEST(WorkerTest, AsksSourcesAtTheClocksTime) {
  ManualClock clock;
  clock.Advance(absl::Hours(7));
  Metrics metrics;
  absl::Notification asked;
  const auto source = std::make_shared<TimeSource>(&asked);
  Worker worker({"cpu:0", 0.25, &clock, &metrics}, MakeCpuDevice(1));
  worker.AddSource(source);
  asked.WaitForNotification();
  EXPECT_EQ(source->time(), absl::UnixEpoch() + absl::Hours(7));
}

TEST(WorkerTest, StopRunsPostedTasks) {
  const WorkerFleet fleet(1);
  bool ran = false;
  fleet.worker(0).Post([&ran] { ran = true; });
  fleet.worker(0).Stop();
  EXPECT_TRUE(ran);
  fleet.worker(0).Stop();  // idempotent
}

TEST(WorkerTest, LosesNoWakeUp) {
  constexpr int kProducers = 4;
  constexpr int kEach = 3000;
  const WorkerFleet fleet(2);
  const auto source = std::make_shared<QueueSource>();
  absl::BlockingCounter done(kProducers * kEach);
  for (Worker* worker : fleet.workers()) {
    worker->AddSource(source);
  }
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        source->Push([&done] { done.DecrementCount(); });
        fleet.worker(static_cast<size_t>(i % 2)).Wake();
      }
    });
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  done.Wait();  // hangs if one was lost
}

}  // namespace
}  // namespace braid
