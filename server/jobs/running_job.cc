#include "server/jobs/running_job.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr absl::Duration kStoreInterval = absl::Seconds(1);
constexpr absl::Duration kRateInterval = absl::Seconds(2);
// Metrics that wait for the disk. Beyond, the oldest are dropped.
constexpr size_t kMaxMetrics = 100'000;

// A request replaces those of lower rank.
int Rank(JobStop stop) {
  switch (stop) {
    case JobStop::kNone:
      return 0;
    case JobStop::kDrain:
    case JobStop::kPreempt:
      return 1;
    case JobStop::kPause:
      return 2;
    case JobStop::kCancel:
      return 3;
  }
  return 0;
}

}  // namespace

RunningJob::RunningJob(JobRecord record, JobStore* store, const Clock* clock, JobMetrics* metrics,
                       std::shared_ptr<TrackedRun> tracked, std::function<void()> changed)
    : record_(std::move(record)),
      store_(store),
      clock_(clock),
      metrics_(metrics),
      tracked_(std::move(tracked)),
      changed_(std::move(changed)),
      progress_(record_.progress),
      last_progress_(clock->Now()),
      next_store_(clock->Now() + kStoreInterval) {
  progress_.wait_seconds = 0;
}

JobProgress RunningJob::progress() const {
  const absl::MutexLock lock(&mu_);
  return progress_;
}

absl::Time RunningJob::last_progress() const {
  const absl::MutexLock lock(&mu_);
  return last_progress_;
}

void RunningJob::RequestStop(JobStop stop, absl::string_view why) {
  const absl::MutexLock lock(&mu_);
  if (Rank(stop) > Rank(stop_.stop)) {
    stop_ = {stop, std::string(why)};
  }
}

void RunningJob::WithdrawPause(absl::string_view why) {
  const absl::MutexLock lock(&mu_);
  if (stop_.stop == JobStop::kPause) {
    stop_ = {JobStop::kPreempt, std::string(why)};
  }
}

JobStopRequest RunningJob::stop_request() const {
  const absl::MutexLock lock(&mu_);
  return stop_;
}

JobStop RunningJob::stop() const {
  const absl::MutexLock lock(&mu_);
  return stop_.stop;
}

void RunningJob::WaitForStop(absl::Duration timeout) const {
  const auto stops = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_.stop != JobStop::kNone; };
  const absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&stops), timeout);
}

void RunningJob::Report(const JobProgress& progress) {
  SetProgress(progress);
  StoreIfDue();
  changed_();
}

void RunningJob::NoteActivity() {
  const absl::Time now = clock_->Now();
  const absl::MutexLock lock(&mu_);
  last_progress_ = now;
}

absl::Status RunningJob::Save(const JobProgress& progress, absl::string_view memory) {
  SetProgress(progress);
  BRAID_RETURN_IF_ERROR(Flush());
  BRAID_RETURN_IF_ERROR(store_->SaveProgress(record_.id, progress, memory));
  changed_();
  return absl::OkStatus();
}

void RunningJob::SetProgress(const JobProgress& progress) {
  const absl::Time now = clock_->Now();
  int64_t new_rows = 0;
  int64_t new_steps = 0;
  {
    const absl::MutexLock lock(&mu_);
    if (rate_rows_ >= 0) {  // The first report may differ from the record, after a crash.
      new_rows = std::max<int64_t>(progress.rows - progress_.rows, 0);
      new_steps = std::max<int64_t>(progress.step - progress_.step, 0);
    }
    const absl::Duration passed = now - rate_start_;
    const bool restarts =
        rate_rows_ < 0 || progress.rows < rate_rows_ || passed < absl::ZeroDuration();
    double row_rate = restarts ? 0 : progress_.rows_per_second;
    double step_rate = restarts ? 0 : progress_.steps_per_second;
    if (!restarts && passed >= kRateInterval) {
      const double seconds = absl::ToDoubleSeconds(passed);
      row_rate = static_cast<double>(progress.rows - rate_rows_) / seconds;
      step_rate = static_cast<double>(progress.step - rate_step_) / seconds;
    }
    if (restarts || passed >= kRateInterval) {
      rate_start_ = now;
      rate_rows_ = progress.rows;
      rate_step_ = progress.step;
    }
    if (new_rows > 0 || new_steps > 0) {
      last_progress_ = now;
    }
    progress_ = progress;
    progress_.rows_per_second = row_rate;
    progress_.steps_per_second = step_rate;
  }
  metrics_->CountRows(JobKindName(record_.kind), new_rows);
  metrics_->CountSteps(new_steps);
}

void RunningJob::AddMetrics(int64_t step, std::vector<TrackedValue> values) {
  const absl::MutexLock lock(&mu_);
  for (const TrackedValue& value : values) {
    unwritten_.push_back({step, value.name, value.value});
  }
  if (tracked_ == nullptr) {
    return;
  }
  if (step > tracked_step_ && progress_.rows_per_second > 0) {
    values.push_back({"rows_per_second", progress_.rows_per_second});
    tracked_step_ = step;
  }
  tracked_->Add(step, std::move(values));
}

void RunningJob::WriteMetrics() { LogUnwritten(Flush()); }

void RunningJob::ContinueAfter(int64_t step) {
  const absl::MutexLock lock(&mu_);
  tracked_step_ = step;
  if (tracked_ != nullptr) {
    tracked_->Restart(step);
  }
}

void RunningJob::StoreIfDue() {
  {
    const absl::Time now = clock_->Now();
    const absl::MutexLock lock(&mu_);
    // The second condition is for a clock that was set back.
    if (now < next_store_ && next_store_ - now <= kStoreInterval) {
      return;
    }
    next_store_ = now + kStoreInterval;
  }
  LogUnwritten(Store());
}

void RunningJob::LogUnwritten(const absl::Status& status) const {
  if (!status.ok()) {
    Log(LogModule::kJobs)
        .warn("job {}: metrics not written yet: {}", record_.id, std::string(status.message()));
  }
}

absl::Status RunningJob::Flush() {
  if (tracked_ != nullptr) {
    tracked_->Flush();
  }
  return Store();
}

absl::Status RunningJob::Store() {
  const absl::MutexLock writing(&write_mu_);
  std::vector<JobMetric> metrics;
  {
    const absl::MutexLock lock(&mu_);
    metrics.swap(unwritten_);
  }
  if (metrics.empty()) {
    return absl::OkStatus();
  }
  const absl::Status status = store_->AddMetrics(record_.id, metrics);
  if (!status.ok()) {
    const absl::MutexLock lock(&mu_);
    metrics.insert(metrics.end(), unwritten_.begin(), unwritten_.end());
    if (metrics.size() > kMaxMetrics) {
      metrics.erase(metrics.begin(), metrics.end() - kMaxMetrics);
    }
    unwritten_ = std::move(metrics);
  }
  return status;
}

void RunningJob::AddLog(JobLogLevel level, absl::string_view text) {
  const absl::Status status = store_->AddLog(record_.id, level, text);
  Log(LogModule::kJobs).info("job {}: {}", record_.id, std::string(text));
  if (!status.ok()) {
    Log(LogModule::kJobs)
        .warn("job {}: log line not stored: {}", record_.id, std::string(status.message()));
  }
}

}  // namespace braid
