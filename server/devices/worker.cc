#include "server/devices/worker.h"

#include <pthread.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/devices/host_allocator.h"
#include "server/devices/torch_settings.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// A background batch of a millisecond waits for at most this many milliseconds of other work, so
// background work gets a twentieth of the time.
constexpr double kBackgroundWait = 19;
// How long the first batch of a background source waits for other work.
constexpr absl::Duration kFirstBackgroundWait = absl::Milliseconds(100);
// How often a worker with background work looks if that for training has become idle.
constexpr absl::Duration kTrainingPoll = absl::Milliseconds(1);

// Worker that the thread computes for.
thread_local const Worker* worker_of_thread = nullptr;
// Worker whose own thread this is.
thread_local const Worker* owner_of_thread = nullptr;

// Makes the calling thread compute for a worker in a scope.
class ComputesFor {
 public:
  explicit ComputesFor(const Worker* worker) : outer_(std::exchange(worker_of_thread, worker)) {}
  ~ComputesFor() { worker_of_thread = outer_; }
  ComputesFor(const ComputesFor&) = delete;
  ComputesFor& operator=(const ComputesFor&) = delete;

 private:
  const Worker* const outer_;
};

}  // namespace

absl::string_view CurrentDeviceName() {
  return worker_of_thread != nullptr ? worker_of_thread->name() : absl::string_view();
}

int64_t OutOfMemoryErrors() {
  return HostOutOfMemoryErrors() +
         (worker_of_thread != nullptr ? worker_of_thread->device().out_of_memory_errors() : 0);
}

Worker::Worker(Options options, std::unique_ptr<Device> device, const Worker* training)
    : options_(std::move(options)),
      device_(std::move(device)),
      training_(training),
      metrics_(options_.metrics, options_.name),
      share_(options_.training_share),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
}

Worker::~Worker() { Stop(); }

void Worker::Stop() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
    sources_.clear();
    wake_.Signal();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Worker::Post(Task task) {
  const absl::Time now = absl::Now();
  const absl::MutexLock lock(&mu_);
  tasks_.push_back({std::move(task), now});
  wake_.Signal();
}

void Worker::PostToAll(const std::vector<Worker*>& workers,
                       absl::FunctionRef<Task(size_t)> task) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // All threads lock in the order of addresses.
  const std::set<Worker*> locked(workers.begin(), workers.end());
  for (Worker* worker : locked) {
    worker->posting_mu_.Lock();
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    workers[i]->Post(task(i));
  }
  for (Worker* worker : locked) {
    worker->posting_mu_.Unlock();
  }
}

void Worker::AddSource(std::weak_ptr<WorkSource> source, bool background) {
  const absl::MutexLock lock(&mu_);
  // The new source gets no credit for the time before.
  const auto other = std::find_if(sources_.begin(), sources_.end(),
                                  [&](const Source& s) { return s.background == background; });
  const absl::Duration served = other == sources_.end() ? absl::ZeroDuration() : other->served;
  sources_.push_back({std::move(source), background, served});
  if (background) {
    background_due_ = std::min(background_due_, options_.clock->Now() + kFirstBackgroundWait);
  }
  wake_.Signal();
}

bool Worker::Wake() {
  // The worker sets the flag before it asks its sources, and callers queue work before they wake
  // it, so at least one of the two sees the other.
  if (!asleep_.exchange(false)) {
    return false;
  }
  const absl::MutexLock lock(&mu_);
  wake_.Signal();
  return true;
}

bool Worker::RunInline(WorkSource& source) {
  // A batch may take longer than expected. Only one calling thread is held up at a time.
  std::atomic<bool>& running = *options_.inline_batch;
  if (!asleep_.load() || !device_->lendable() || running.exchange(true)) {
    return false;
  }
  const absl::Cleanup over = [&running] { running = false; };
  Choice choice = Lend(source);
  if (!choice.work) {
    return false;
  }
  thread_local bool entered = false;
  if (!std::exchange(entered, true)) {
    SetUpWorkerThread(device_->threads());
    device_->Enter();
  }
  const ComputesFor this_worker(this);
  const absl::Duration time = Do(&choice);
  const absl::MutexLock lock(&mu_);
  CountBatch(time);
  TakeBack();
  return true;
}

Worker::Choice Worker::Lend(WorkSource& source) {
  const absl::MutexLock lock(&mu_);
  if (!asleep_.load() || stop_ || !tasks_.empty()) {
    return {};
  }
  const auto place = std::find_if(sources_.begin(), sources_.end(), [&](const Source& s) {
    return s.source.lock().get() == &source;
  });
  if (place == sources_.end()) {
    return {};
  }
  WorkSource::Next next = TakeBatch(place, source, options_.clock->Now());
  if (!std::holds_alternative<WorkSource::Work>(next)) {
    return {};
  }
  lent_ = true;
  working_ = true;
  asleep_ = false;
  return {std::get<WorkSource::Work>(std::move(next)), WorkKind::kBatch};
}

void Worker::TakeBack() {
  lent_ = false;
  working_ = false;
  asleep_ = true;
  if (stop_ || !tasks_.empty()) {
    wake_.Signal();
    return;
  }
  WorkSource::Next next = TakeBatch(options_.clock->Now());
  if (std::holds_alternative<WorkSource::Work>(next)) {
    handed_over_ = std::get<WorkSource::Work>(std::move(next));
    working_ = !sources_.front().background;
    asleep_ = false;
    wake_.Signal();
  } else if (std::get<absl::Time>(next) < absl::InfiniteFuture()) {
    wake_.Signal();
  }
}

Worker::Measurement::Measurement(Worker* worker, Phase phase, absl::Duration* total)
    : worker_(worker),
      phase_(phase),
      total_(total),
      outside_(std::exchange(worker->measured_, absl::ZeroDuration())) {
  if (std::unique_ptr<DeviceEvent> begin = worker->device_->RecordEvent()) {
    interval_ = worker->intervals_
                    .emplace_back(std::make_unique<Interval>(
                        Interval{phase, total, worker->open_, std::move(begin)}))
                    .get();
    worker->open_ = interval_;
  }
}

Worker::Measurement::~Measurement() {
  const absl::Duration time = absl::Now() - start_;
  const absl::Duration inside = std::exchange(worker_->measured_, outside_ + time);
  if (interval_ != nullptr) {
    interval_->end = worker_->device_->RecordEvent();
    worker_->open_ = interval_->outer;
    return;
  }
  worker_->AddBusy(phase_, time - inside);
  if (total_ != nullptr) {
    *total_ += time;
  }
}

void Worker::EndIntervals(bool known) {
  // Nested intervals, which began later, come first.
  for (auto it = intervals_.rbegin(); known && it != intervals_.rend(); ++it) {
    const Interval& interval = **it;
    if (interval.end == nullptr) {
      continue;
    }
    const absl::Duration time = interval.end->Since(*interval.begin);
    AddBusy(interval.phase, time - interval.inner);
    if (interval.outer != nullptr) {
      interval.outer->inner += time;
    }
    if (interval.total != nullptr) {
      *interval.total += time;
    }
  }
  std::erase_if(intervals_, [](const auto& interval) { return interval->end != nullptr; });
}

absl::Status Worker::Synchronize() {
  absl::Status status = healthy() ? device_->Synchronize() : LostStatus();
  if (owner_of_thread == this) {
    EndIntervals(/*known=*/status.ok());
  }
  if (!healthy()) {
    return LostStatus();
  }
  if (!absl::IsUnavailable(status)) {
    return status;
  }
  MarkLost(status);
  return LostStatus();
}

void Worker::MarkLost(const absl::Status& why) {
  if (!healthy_.exchange(false)) {
    return;  // another thread has reported it
  }
  const std::string message = absl::StrCat("device ", options_.name, " is lost: ", why.message());
  Log(LogModule::kDevices).critical("{}", message);
  if (options_.on_lost) {
    options_.on_lost(absl::UnavailableError(message));
  }
}

absl::Status Worker::LostStatus() const {
  return absl::UnavailableError(
      absl::StrCat("device ", options_.name, " is lost (see the log; restart the server)"));
}

void Worker::AddBusy(Phase phase, absl::Duration busy) {
  busy_nanoseconds_[static_cast<size_t>(phase)].fetch_add(absl::ToInt64Nanoseconds(busy),
                                                          std::memory_order_relaxed);
  metrics_.AddBusy(phase, busy);
}

void Worker::CountChunk(DeviceWork work, int64_t rows) {
  samples_.fetch_add(rows, std::memory_order_relaxed);
  metrics_.CountChunk(work, rows);
}

absl::Duration Worker::busy(Phase phase) const {
  return absl::Nanoseconds(
      busy_nanoseconds_[static_cast<size_t>(phase)].load(std::memory_order_relaxed));
}

void Worker::EnterForLoading() {
  SetUpWorkerThread(device_->threads());
  device_->EnterForLoading();
  worker_of_thread = this;
}

void Worker::Run() {
  SetUpWorkerThread(device_->threads());
  device_->Enter();
  owner_of_thread = this;
  worker_of_thread = this;
  while (true) {
    Choice choice = Choose();
    if (!choice.work) {
      return;
    }
    const absl::Duration time = Do(&choice);
    const absl::MutexLock lock(&mu_);
    if (choice.kind == WorkKind::kTask) {
      share_.RecordTask(time, choice.by_credit);
    } else {
      CountBatch(time);
    }
  }
}

absl::Duration Worker::Do(Choice* choice) {
  const absl::Time start = absl::Now();
  choice->work();
  choice->work = nullptr;  // releases what it holds before the worker counts as free
  return absl::Now() - start;
}

Worker::Choice Worker::Choose() {
  const absl::MutexLock lock(&mu_);
  working_ = false;
  while (true) {
    if (lent_) {
      wake_.Wait(&mu_);
      continue;
    }
    if (handed_over_) {
      return {std::exchange(handed_over_, nullptr), WorkKind::kBatch};
    }
    asleep_ = true;
    Choice choice;
    absl::Time until = absl::InfiniteFuture();
    if (!tasks_.empty() && share_.Choose() == WorkKind::kTask) {
      choice = {TakeTask(), WorkKind::kTask, /*by_credit=*/true};
    } else if (WorkSource::Next next = TakeBatch(options_.clock->Now());
               std::holds_alternative<WorkSource::Work>(next)) {
      choice = {std::get<WorkSource::Work>(std::move(next)), WorkKind::kBatch};
    } else if (!tasks_.empty()) {
      choice = {TakeTask(), WorkKind::kTask};
    } else {
      until = std::get<absl::Time>(next);
    }
    if (choice.work) {
      working_ = choice.kind == WorkKind::kTask || !sources_.front().background;
      asleep_ = false;
      return choice;
    }
    if (stop_) {
      return choice;
    }
    wake_.WaitWithDeadline(&mu_, until);
  }
}

WorkSource::Next Worker::TakeBatch(absl::Time now) {
  std::erase_if(sources_, [](const Source& s) { return s.source.expired(); });
  std::stable_sort(sources_.begin(), sources_.end(), [](const Source& a, const Source& b) {
    return std::tie(a.background, a.served) < std::tie(b.background, b.served);
  });
  if (now >= background_due_) {
    WorkSource::Next next = TakeBatchOf(/*background=*/true, now);
    if (std::holds_alternative<WorkSource::Work>(next)) {
      return next;
    }
  }
  WorkSource::Next next = TakeBatchOf(/*background=*/false, now);
  if (std::holds_alternative<WorkSource::Work>(next) || !tasks_.empty() || sources_.empty() ||
      !sources_.back().background) {
    return next;
  }
  const auto earliest = std::get<absl::Time>(next);
  if (trains()) {
    return std::min(earliest, now + kTrainingPoll);
  }
  next = TakeBatchOf(/*background=*/true, now);
  if (absl::Time* later = std::get_if<absl::Time>(&next)) {
    *later = std::min(*later, earliest);
  }
  return next;
}

WorkSource::Next Worker::TakeBatchOf(bool background, absl::Time now) {
  absl::Time earliest = absl::InfiniteFuture();
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].background != background) {
      continue;
    }
    const std::shared_ptr<WorkSource> source = sources_[i].source.lock();
    if (source == nullptr) {
      continue;
    }
    WorkSource::Next next =
        TakeBatch(sources_.begin() + static_cast<std::ptrdiff_t>(i), *source, now);
    if (std::holds_alternative<WorkSource::Work>(next)) {
      return next;
    }
    earliest = std::min(earliest, std::get<absl::Time>(next));
  }
  return earliest;
}

WorkSource::Next Worker::TakeBatch(Sources::iterator place, WorkSource& from, absl::Time now) {
  WorkSource::Next next = from.Take(*this, now);
  if (std::holds_alternative<WorkSource::Work>(next)) {
    if (!place->background) {
      MarkForeground(now);
    }
    // The sources before it have no work and get no credit for this time.
    for (auto idle = sources_.begin(); idle != place; ++idle) {
      if (idle->background == place->background) {
        idle->served = place->served;
      }
    }
    std::rotate(sources_.begin(), place, place + 1);
  }
  return next;
}

void Worker::CountBatch(absl::Duration time) {
  // The source is still the first one: new sources are added at the end.
  if (sources_.empty()) {
    return;  // stopped
  }
  if (sources_.front().background) {
    background_due_ = options_.clock->Now() + time * kBackgroundWait;
  } else {
    share_.RecordBatch(time, /*task_waited=*/!tasks_.empty());
  }
  if (const std::shared_ptr<WorkSource> source = sources_.front().source.lock()) {
    sources_.front().served += time / source->weight();
  }
}

Worker::Task Worker::TakeTask() {
  PostedTask next = std::move(tasks_.front());
  tasks_.pop_front();
  RecordQueued(DeviceWork::kTraining, absl::Now() - next.posted);
  MarkForeground(options_.clock->Now());
  return std::move(next.task);
}

absl::Time Worker::last_foreground() const {
  const absl::Time last = absl::FromUnixNanos(last_foreground_.load());
  if (training_ == nullptr) {
    return last;
  }
  return trains() ? options_.clock->Now() : std::max(last, training_->last_foreground());
}

void Worker::MarkForeground(absl::Time now) { last_foreground_ = absl::ToUnixNanos(now); }

}  // namespace braid
