// Thread of a device slot. All computation on the device runs on it.
//
// A worker gets two kinds of work. Tasks are posted to one worker, such as a rank's share of a
// training step or a warm-up run, and run in the order of posting. Batches are pulled: a free
// worker asks its sources, the queues of the models that it has replicas of, and starts with the
// source that has used the least of its time. Batches go first, but tasks get `training_share` of
// the time while both wait. Background sources, those of jobs, are asked only if no task and no
// batch of another source is ready, except that they get a twentieth of the time at least.
//
// A batch that takes less time than waking a thread may run on the thread that submits it
// (RunInline()). Models are loaded by other threads, on a stream of their own (RunOnLoadThreads()).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
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

// Source of batches. Thread-safe.
class WorkSource {
 public:
  using Work = absl::AnyInvocable<void()>;
  // Work to do now, or the earliest time when there may be some (InfiniteFuture: not before
  // Wake()).
  using Next = std::variant<Work, absl::Time>;

  virtual ~WorkSource() = default;
  // Removes and returns the next work for `worker`. The worker calls it with its lock held, so it
  // must neither block nor call a worker.
  virtual Next Take(const Worker& worker, absl::Time now) = 0;
  // Relative share of the time when several sources have work. > 0.
  virtual double weight() const { return 1; }
};

// Returns the name of the device that the calling thread computes for, or an empty string.
absl::string_view CurrentDeviceName();
// Returns the number of allocations that failed for lack of memory: on the host, those of the
// calling thread, and on its device, those of all threads.
int64_t OutOfMemoryErrors();

// Thread-safe.
class Worker {
 public:
  using Task = absl::AnyInvocable<void()>;

  struct Options {
    std::string name;
    // Share of the time that tasks get while batches wait, too. In [0, 1).
    double training_share = 0.25;
    const Clock* clock = nullptr;  // outlives the worker
    Metrics* metrics = nullptr;    // outlives the worker
    // Called once when the device is lost, by the thread that notices. Must not block.
    std::function<void(const absl::Status& why)> on_lost = nullptr;
    // True while a thread is in RunInline(). Workers that share it run one inline batch at a time.
    std::shared_ptr<std::atomic<bool>> inline_batch = std::make_shared<std::atomic<bool>>(false);
  };

  // training: another worker of the same slot, for which background batches wait, too; destroyed
  // after Stop(). nullptr: none.
  Worker(Options options, std::unique_ptr<Device> device, const Worker* training = nullptr);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Takes no more batches, runs the tasks that are posted and joins the thread. Stop all workers
  // whose tasks use each other before you destroy one.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Queues `task`. The queue is unbounded: callers limit how many tasks they post.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // Posts `task(i)` to `workers[i]` for every i. Calls that share workers reach them in the same
  // order, so tasks that wait for each other do not deadlock.
  static void PostToAll(const std::vector<Worker*>& workers, absl::FunctionRef<Task(size_t)> task);

  // Adds a source, which the worker asks as long as it lives. Batches of a `background` source run
  // when there is no other work, or when background sources have had less than their share.
  void AddSource(std::weak_ptr<WorkSource> source, bool background = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes a sleeping worker ask its sources again. Returns false if it is busy or already woken.
  bool Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the next batch of `source` on the calling thread, which is no worker's, if the worker is
  // idle and its device lendable. Returns false if nothing was run.
  bool RunInline(WorkSource& source) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `work` on the calling thread, which is the worker's, and adds its time to `phase`, without
  // the time of nested calls. Adds the whole time to `*total`, if given. On a GPU, this is the time
  // on its stream, which is known after the next Synchronize(); `total` must be valid until then.
  template <typename Work>
  auto Measure(Phase phase, Work work, absl::Duration* total = nullptr) {
    const Measurement measurement(this, phase, total);
    return work();
  }
  void AddBusy(Phase phase, absl::Duration busy);
  // Counts a forward pass of `rows` rows.
  void CountChunk(DeviceWork work, int64_t rows);
  // Records the queueing time of a batch. The worker records that of tasks itself.
  void RecordQueued(DeviceWork work, absl::Duration queued) { metrics_.RecordQueued(work, queued); }

  // Sets the calling thread up to load models on the device: settings of LibTorch and the stream
  // for loading. The thread must end before the worker is destroyed and must not enter another
  // device.
  void EnterForLoading();

  // Calls Device::Synchronize() on a thread that has entered the device. Once it returns
  // UNAVAILABLE, the device is lost: every later call returns UNAVAILABLE, too.
  absl::Status Synchronize();
  // Marks the device as lost because of `why`.
  void MarkLost(const absl::Status& why);
  // Returns false once the device is lost.
  bool healthy() const { return healthy_.load(); }
  // Returns the error of work for a lost device.
  absl::Status LostStatus() const;

  const std::string& name() const { return options_.name; }
  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  c10::Device torch_device() const { return device_->torch_device(); }
  // Returns true if the worker has tasks or several sources.
  bool has_other_work() const ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return !tasks_.empty() || sources_.size() > 1;
  }
  // Returns true if the worker is idle, or soon will be because it runs a background batch.
  bool free() const { return !working_.load(); }
  // Returns when the worker, or that for training, last started other than background work; a time
  // long ago if never.
  absl::Time last_foreground() const;
  absl::Duration busy(Phase phase) const;
  int64_t samples() const { return samples_.load(std::memory_order_relaxed); }

 private:
  struct Source {
    std::weak_ptr<WorkSource> source;
    bool background = false;
    // Time of its batches divided by its weight. A source that had no work does not catch up.
    absl::Duration served = {};
  };
  struct PostedTask {
    Task task;
    absl::Time posted;
  };
  // Call of Measure() on a device whose events give the time later.
  struct Interval {
    Phase phase;
    absl::Duration* total;
    Interval* outer;  // enclosing interval, or nullptr
    std::unique_ptr<DeviceEvent> begin;
    std::unique_ptr<DeviceEvent> end = nullptr;  // nullptr while it is open
    absl::Duration inner = {};                   // time of nested intervals
  };
  // Scope of a call of Measure().
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
    absl::Duration outside_;  // nested time of the enclosing call so far
    Interval* interval_ = nullptr;
  };
  struct Choice {
    WorkSource::Work work;
    WorkKind kind = WorkKind::kTask;
    bool by_credit = false;  // a task that went before batches
  };
  using Sources = std::vector<Source>;

  void Run();
  // Returns the next work; blocks until there is some. `work` is empty when the worker stops.
  Choice Choose() ABSL_LOCKS_EXCLUDED(mu_);
  WorkSource::Next TakeBatch(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a batch of the first source that has one, among those that are `background` or not.
  WorkSource::Next TakeBatchOf(bool background, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a batch of `from`, the source at `place` in sources_, and moves it to the front.
  WorkSource::Next TakeBatch(Sources::iterator place, WorkSource& from, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the closed intervals. Counts their time if `known`.
  void EndIntervals(bool known);
  // Runs the work and returns the time that it took.
  static absl::Duration Do(Choice* choice);
  // Takes a batch of `source` and lends the device until TakeBack(). `work` is empty if there is no
  // batch or if the worker is busy.
  Choice Lend(WorkSource& source) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the loan and hands work that has arrived to the worker's thread.
  void TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Charges `time` to the source of the latest batch.
  void CountBatch(absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Task TakeTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkForeground(absl::Time now);
  // Returns true if the worker for training has work.
  bool trains() const { return training_ != nullptr && !training_->free(); }

  // Constant after construction.
  const Options options_;
  const std::unique_ptr<Device> device_;
  const Worker* const training_;

  // Used by the thread that runs the current work: time measured within the current call.
  absl::Duration measured_;
  // Used by the worker's thread: intervals in the order of their begin, and the innermost open one.
  std::vector<std::unique_ptr<Interval>> intervals_;
  Interval* open_ = nullptr;

  // Thread-safe.
  DeviceMetrics metrics_;
  std::atomic<bool> working_{true};                                            // on foreground work
  std::atomic<int64_t> last_foreground_{std::numeric_limits<int64_t>::min()};  // Unix nanoseconds
  std::atomic<bool> asleep_{false};
  std::atomic<int64_t> samples_{0};
  std::atomic<bool> healthy_{true};
  std::array<std::atomic<int64_t>, kPhases> busy_nanoseconds_{};

  // Held by PostToAll().
  absl::Mutex posting_mu_;

  mutable absl::Mutex mu_;
  absl::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool lent_ ABSL_GUARDED_BY(mu_) = false;  // to a thread in RunInline()
  // Batch that TakeBack() took for the worker's thread.
  WorkSource::Work handed_over_ ABSL_GUARDED_BY(mu_);
  std::deque<PostedTask> tasks_ ABSL_GUARDED_BY(mu_);
  // Background sources last, then sorted by `served`, except that the source of the latest batch is
  // first.
  Sources sources_ ABSL_GUARDED_BY(mu_);
  // When a background batch goes before other work.
  absl::Time background_due_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  WorkShare share_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
