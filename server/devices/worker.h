// The thread that owns a device slot: what that device computes runs on it. What a model that is
// loaded brings there comes from a thread beside it (Enter()).
//
// Two kinds of work reach it. Tasks are posted to this worker by name (a training step's share, a
// run of a warm-up) and run in the order of posting. Batches are pulled: when the worker is
// free it asks its sources, the queues of the models that it holds a replica of, for the next one,
// first the source that has had the least of its time.
// Batches go first; `training_share` of the time for which both kinds wait is the tasks' all the
// same.
//
// A batch that takes less time than a sleeping thread takes to wake may run on the thread that
// brings it, which has the device lent for so long.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/devices/device.h"
#include "server/devices/work_share.h"
#include "server/telemetry/device_metrics.h"
#include "server/telemetry/metrics.h"

namespace braid {

class Worker;

// Where a worker finds batches. Thread-safe.
class WorkSource {
 public:
  using Work = absl::AnyInvocable<void()>;
  // Work to do now; or the time from which there will be some (InfiniteFuture: until Wake()).
  using Next = std::variant<Work, absl::Time>;

  virtual ~WorkSource() = default;
  // What `worker` should do next, at `now`. Takes what it returns. The worker calls it under its
  // lock: it neither blocks nor calls a worker.
  virtual Next Take(const Worker& worker, absl::Time now) = 0;
  // Of the time for which several sources have work, this one's part is proportional to it. > 0.
  virtual double weight() const { return 1; }
};

// The name of the device that the calling thread computes for; empty where it does for none.
absl::string_view DeviceOfThread();
// Allocations, of its device's memory or of the host's, that have been refused to the calling
// thread; of a GPU those of other threads, too.
int64_t OutOfMemoryErrorsOfThread();

// Thread-safe.
class Worker {
 public:
  using Task = absl::AnyInvocable<void()>;

  struct Options {
    std::string name;
    // Of the time for which tasks and batches both wait, the tasks' part, in [0, 1].
    double training_share = 0.25;
    const Clock* clock = nullptr;  // outlives the worker
    Metrics* metrics = nullptr;    // outlives the worker
    // Called once, by the thread that notices, when its device is lost. Must not block.
    std::function<void(const absl::Status& why)> on_lost = nullptr;
  };

  Worker(Options options, std::unique_ptr<Device> device);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs the tasks that are posted, then joins the thread; takes no batch any more. Workers that
  // know each other are all stopped before one of them goes.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Queues `task`. Its callers bound how many they post.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mu_);

  // From now on asks `source` too, as long as it lives. Sources that have work share the time by
  // their weights.
  void AddSource(std::weak_ptr<WorkSource> source) ABSL_LOCKS_EXCLUDED(mu_);
  // Has a free worker ask its sources again. False if it is at work, or woken already.
  bool Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // If the worker has nothing to do, and its device lets any thread compute for it: runs the next
  // batch of `source` here, for which the calling thread, no worker's, is the worker's. One thread
  // in the process at a time. False: nothing was run.
  bool RunHere(WorkSource& source) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `work` on the calling thread, which is the worker's, and counts the time as `phase`, less
  // what was measured inside. Adds all of it to `*total`, if that is given. The time of a GPU is
  // what its stream takes, and is known after the next Synchronize(), until which `total` is valid.
  template <typename Work>
  auto Measure(Phase phase, Work work, absl::Duration* total = nullptr) {
    const Measurement measurement(this, phase, total);
    return work();
  }
  void AddBusy(Phase phase, absl::Duration busy);
  // `rows` rows went through a forward pass together.
  void CountChunk(DeviceWork work, int64_t rows);
  // What it does next has waited for `queued`. It counts tasks itself.
  void RecordQueued(DeviceWork work, absl::Duration queued) { metrics_.RecordQueued(work, queued); }

  // Makes the calling thread, for as long as it lasts, the device's beside the worker's own: set up
  // as that is, and with the same stream, so that neither sees memory that the other still uses. It
  // ends before the worker goes, and enters no other's device.
  void Enter();

  // Device::Synchronize(), for a thread that has entered the device. Once it was UNAVAILABLE it
  // always is, and the worker healthy no more: what it is given has to be refused.
  absl::Status Synchronize();
  // The device is lost for the reason `why`, whatever it says itself: as if Synchronize() had been
  // UNAVAILABLE. Any thread.
  void Lose(const absl::Status& why);
  bool healthy() const { return healthy_.load(); }
  // What Synchronize() says of a worker that is not healthy. Any thread.
  absl::Status LostStatus() const;

  const std::string& name() const { return options_.name; }
  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  c10::Device torch_device() const { return device_->torch_device(); }
  // What it does next may be something else than a batch of the source that asks.
  bool has_other_work() const ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return !tasks_.empty() || sources_.size() > 1;
  }
  // Not at work just now.
  bool free() const { return !working_.load(); }
  absl::Duration busy(Phase phase) const;
  int64_t samples() const { return samples_.load(std::memory_order_relaxed); }

 private:
  struct Source {
    std::weak_ptr<WorkSource> source;
    // Time that its batches took, divided by its weight; what it did not ask for while it had no
    // work is counted as if it had been given.
    absl::Duration served;
  };
  struct PostedTask {
    Task task;
    absl::Time posted;
  };
  // A call of Measure() on a device whose time is known later.
  struct Interval {
    Phase phase;
    absl::Duration* total;
    Interval* outer;  // the one around it, nullptr if there is none
    std::unique_ptr<Moment> begin;
    std::unique_ptr<Moment> end = nullptr;  // while it goes on
    absl::Duration inner = {};              // measured inside
  };
  // A call of Measure().
  class Measurement {
   public:
    Measurement(Worker* worker, Phase phase, absl::Duration* total);
    ~Measurement();
    Measurement(const Measurement&) = delete;
    Measurement& operator=(const Measurement&) = delete;

   private:
    Worker* const worker_;
    const Phase phase_;
    absl::Duration* const total_;
    const absl::Time start_ = absl::Now();
    absl::Duration outside_;  // measured before, in the call around this one
    Interval* interval_ = nullptr;
  };
  struct Choice {
    WorkSource::Work work;
    WorkKind kind = WorkKind::kTask;
    bool by_credit = false;  // a task that went before batches
  };
  using Sources = std::vector<Source>;

  void Run();
  // The next thing to do; blocks until there is one. Empty `work` at the end.
  Choice Choose() ABSL_LOCKS_EXCLUDED(mu_);
  WorkSource::Next TakeBatch(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What `source`, which is one of sources_, has to do; its place is the first then.
  WorkSource::Next TakeBatch(Sources::iterator source, WorkSource& from, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the intervals that are over; counts them if `known`.
  void EndIntervals(bool known);
  // Runs it to its end. The time that it took.
  static absl::Duration Do(Choice* choice);
  // What `source` has to do, for which the device is lent until TakeBack(); empty `work`: nothing.
  Choice Lend(WorkSource& source) ABSL_LOCKS_EXCLUDED(mu_);
  // What has come meanwhile is the worker's.
  void TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The batch that was taken last took `time`.
  void CountBatch(absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Task TakeTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Immutable after construction.
  const Options options_;
  const std::unique_ptr<Device> device_;

  // Touched only by the thread that works: what Measure() has counted within the call that it is
  // in ...
  absl::Duration measured_;
  // ... and by the worker's own thread: intervals in the order of their begin, and the innermost
  // one that goes on.
  std::vector<std::unique_ptr<Interval>> intervals_;
  Interval* open_ = nullptr;

  // Provide their own synchronization.
  DeviceMetrics metrics_;
  std::atomic<bool> working_{true};
  std::atomic<bool> asleep_{false};
  std::atomic<int64_t> samples_{0};
  std::atomic<bool> healthy_{true};
  std::array<std::atomic<int64_t>, kPhases> busy_nanoseconds_{};

  mutable absl::Mutex mu_;
  absl::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool lent_ ABSL_GUARDED_BY(mu_) = false;  // to a thread in RunHere(); the worker's waits
  // Taken from a source for the worker's thread.
  WorkSource::Work handed_over_ ABSL_GUARDED_BY(mu_);
  std::deque<PostedTask> tasks_ ABSL_GUARDED_BY(mu_);
  // By `served`, but for the first one, whose batch has just run.
  Sources sources_ ABSL_GUARDED_BY(mu_);
  WorkShare share_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
