#include "server/tracking/tracking.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/directory_lock.h"
#include "server/storage/files.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
// Changes that wait while the disk is slow. More values are dropped.
constexpr size_t kMaxChanges = 100'000;

// Returns `values` without those that `written` has at the same step. A job that continues adds the
// values of its last step again.
TrackedValues WithoutRepeated(TrackedValues values, const TrackedValues& written) {
  if (values.step == written.step) {
    std::erase_if(values.values, [&](const TrackedValue& value) {
      return std::ranges::any_of(written.values, [&](const TrackedValue& other) {
        return other.name == value.name &&
               std::bit_cast<uint64_t>(other.value) == std::bit_cast<uint64_t>(value.value);
      });
    });
  }
  return values;
}

}  // namespace

TrackedRun::Files::Files(const std::string& folder)
    : csv(absl::StrCat(folder, "/metrics.csv"), StepFile::Format::kCsv),
      json(absl::StrCat(folder, "/metrics.jsonl"), StepFile::Format::kJsonLines) {}

void TrackedRun::Add(int64_t step, std::vector<TrackedValue> values) {
  tracking_->Post({Tracking::Kind::kAdd,
                   shared_from_this(),
                   {step, tracking_->clock_->Now(), std::move(values)},
                   "",
                   nullptr});
}

void TrackedRun::Restart(int64_t step) {
  tracking_->Post({Tracking::Kind::kRestart, shared_from_this(), {step, {}, {}}, "", nullptr});
}

void TrackedRun::Flush() {
  absl::Notification done;
  tracking_->Post({Tracking::Kind::kFlush, shared_from_this(), {}, "", &done});
  done.WaitForNotification();
}

absl::Status TrackedRun::Open(absl::Time now) {
  if (files_ != nullptr) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(MakeDirectories(folder_));
  auto files = std::make_unique<Files>(folder_);
  BRAID_RETURN_IF_ERROR(files->csv.Open(last_));
  BRAID_RETURN_IF_ERROR(files->json.Open(last_));
  BRAID_RETURN_IF_ERROR(files->events.Open(folder_, now));
  // Values that a crash has kept out of the event file, or of the others, are left out of it.
  files->newest = std::max({int64_t{0}, files->csv.newest().step, files->json.newest().step});
  if (last_ != StepFile::kAllSteps) {
    // The step to which the run returned comes again, because a crash may have kept its values out
    // of the event file.
    files->events.AddRestart(last_, now);
    if (files->csv.newest().step == last_) {
      files->events.Add(files->csv.newest());
    }
  }
  last_ = StepFile::kAllSteps;
  files_ = std::move(files);
  return absl::OkStatus();
}

absl::Status TrackedRun::RestartNow(int64_t step, absl::Time now) {
  files_ = nullptr;  // A new event file: readers finish those before it.
  last_ = std::min(last_, step);
  std::error_code error;
  if (!std::filesystem::exists(folder_, error)) {
    return absl::OkStatus();  // The first values create it.
  }
  BRAID_RETURN_IF_ERROR(Open(now));
  return files_->events.Flush();
}

absl::Status TrackedRun::Write(std::vector<TrackedValues> values, absl::Time now) {
  BRAID_RETURN_IF_ERROR(Open(now));
  for (TrackedValues& at_step : values) {
    files_->newest = std::max(files_->newest, at_step.step);
    at_step.step = files_->newest;
    files_->events.Add(WithoutRepeated(at_step, files_->csv.newest()));
  }
  absl::Status status = files_->csv.Write(values);
  status.Update(files_->json.Write(values));
  status.Update(files_->events.Flush());
  return status;
}

void TrackedRun::Report(const absl::Status& status) {
  if (!status.ok() && !failing_) {
    Log(LogModule::kTraining)
        .error("tracking of '{}': metrics are not written: {}", folder_,
               std::string(status.message()));
  } else if (status.ok() && failing_) {
    Log(LogModule::kTraining).info("tracking of '{}': metrics are written again", folder_);
  }
  failing_ = !status.ok();
}

absl::StatusOr<std::unique_ptr<Tracking>> Tracking::Create(const std::string& directory,
                                                           const Clock* clock) {
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory));
  BRAID_ASSIGN_OR_RETURN(FileDescriptor lock, LockDirectory(directory));
  return std::unique_ptr<Tracking>(new Tracking(directory, std::move(lock), clock));
}

Tracking::Tracking(std::string directory, FileDescriptor lock, const Clock* clock)
    : directory_(std::move(directory)),
      lock_(std::move(lock)),
      clock_(clock),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "tracking");
}

Tracking::~Tracking() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

std::string Tracking::JobFolder(absl::string_view id) { return absl::StrCat("jobs/", id); }

std::string Tracking::TrainerFolder(absl::string_view name) {
  return absl::StrCat("trainers/", name);
}

std::shared_ptr<TrackedRun> Tracking::Open(absl::string_view folder) {
  const std::string path = absl::StrCat(directory_, "/", folder);
  const std::shared_ptr<TrackedRun> run(new TrackedRun(this, path));
  const absl::MutexLock lock(&mu_);
  std::erase_if(runs_, [](const auto& entry) { return entry.second.expired(); });
  runs_[path] = run;
  return run;
}

void Tracking::Remove(absl::string_view folder) {
  absl::Notification done;
  Change change;
  change.kind = Kind::kRemove;
  change.path = absl::StrCat(directory_, "/", folder);
  change.done = &done;
  {
    const absl::MutexLock lock(&mu_);
    if (const auto found = runs_.find(change.path); found != runs_.end()) {
      change.run = found->second.lock();
      runs_.erase(found);
    }
  }
  Post(std::move(change));
  done.WaitForNotification();
}

void Tracking::Post(Change change) {
  const absl::MutexLock lock(&mu_);
  if (change.kind == Kind::kAdd && changes_.size() >= kMaxChanges) {
    if (!dropping_) {
      Log(LogModule::kTraining)
          .error("tracking: metrics are dropped, the disk is too slow for {}", directory_);
    }
    dropping_ = true;
    return;
  }
  urgent_ = urgent_ || change.done != nullptr;
  changes_.push_back(std::move(change));
}

bool Tracking::MustWrite() const { return stop_ || urgent_ || changes_.size() >= kMaxChanges / 2; }

void Tracking::Run() {
  bool stop = false;
  while (!stop) {
    std::vector<Change> changes;
    {
      const absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(this, &Tracking::MustWrite), kInterval);
      stop = stop_;
      urgent_ = false;
      dropping_ = false;
      changes.swap(changes_);
    }
    Apply(std::move(changes));
  }
}

void Tracking::Apply(std::vector<Change> changes) {
  const absl::Time now = clock_->Now();
  std::map<std::shared_ptr<TrackedRun>, std::vector<TrackedValues>> added;
  const auto write = [&](const std::shared_ptr<TrackedRun>& run) {
    if (const auto found = added.find(run); found != added.end()) {
      run->Report(run->Write(std::move(found->second), now));
      added.erase(found);
    }
  };
  for (Change& change : changes) {
    const std::shared_ptr<TrackedRun>& run = change.run;
    if (change.kind == Kind::kRemove) {
      if (run != nullptr) {
        added.erase(run);
        run->removed_ = true;
        run->files_ = nullptr;
      }
      if (const absl::Status removed = RemoveTree(change.path); !removed.ok()) {
        Log(LogModule::kTraining).error("tracking: {}", std::string(removed.message()));
      }
      change.done->Notify();
    } else if (change.kind == Kind::kFlush) {
      write(run);
      change.done->Notify();
    } else if (run->removed_) {
      continue;
    } else if (change.kind == Kind::kRestart) {
      write(run);
      run->Report(run->RestartNow(change.values.step, now));
    } else {
      added[run].push_back(std::move(change.values));
    }
  }
  while (!added.empty()) {
    write(added.begin()->first);
  }
}

}  // namespace braid
