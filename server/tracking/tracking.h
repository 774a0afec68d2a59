// Metrics of jobs and trainers in files, for pandas and TensorBoard.
//
//   <directory>/<folder>/metrics.csv            see step_file.h
//                        metrics.jsonl
//                        events.out.tfevents.*  see event_file.h
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/base/clock.h"
#include "server/storage/file_descriptor.h"
#include "server/tracking/event_file.h"
#include "server/tracking/step_file.h"
#include "server/tracking/tracked_values.h"

namespace braid {

class Tracking;

// Metrics of a job or a trainer while it runs. Thread-safe. Methods do not wait for the disk,
// except Flush(). Errors of the disk are logged and cost only values.
class TrackedRun : public std::enable_shared_from_this<TrackedRun> {
 public:
  // Adds values at `step`, or at the newest step if that is later.
  void Add(int64_t step, std::vector<TrackedValue> values);
  // Goes back to the state after `step`: removes the values of later steps.
  void Restart(int64_t step);
  // Writes the values so far to all files. Blocks on the disk.
  void Flush();

 private:
  friend class Tracking;
  struct Files {
    explicit Files(const std::string& folder);
    StepFile csv;
    StepFile json;
    EventFile events;
    int64_t newest = 0;  // step
  };

  TrackedRun(Tracking* tracking, std::string folder)
      : tracking_(tracking), folder_(std::move(folder)) {}

  // Touched only by the thread of Tracking.
  // Opens the files without steps after last_, unless they are open.
  absl::Status Open(absl::Time now);
  absl::Status RestartNow(int64_t step, absl::Time now);
  absl::Status Write(std::vector<TrackedValues> values, absl::Time now);
  // Logs the first of several errors, and their end.
  void Report(const absl::Status& status);

  Tracking* const tracking_;
  const std::string folder_;  // its path

  // Touched only by the thread of Tracking.
  bool removed_ = false;
  bool failing_ = false;
  int64_t last_ = StepFile::kAllSteps;  // of a Restart() that the files do not show yet
  std::unique_ptr<Files> files_;        // nullptr: not open
};

// Owned by the server. Thread-safe. Writes once a second, on a thread of its own.
class Tracking {
 public:
  // Creates `directory` and locks it. FAILED_PRECONDITION if another server uses it. `clock`
  // outlives the object.
  static absl::StatusOr<std::unique_ptr<Tracking>> Create(const std::string& directory,
                                                          const Clock* clock);
  // Writes what waits. The runs must not be used any more.
  ~Tracking();
  Tracking(const Tracking&) = delete;
  Tracking& operator=(const Tracking&) = delete;

  // Folders of jobs and trainers.
  static std::string JobFolder(absl::string_view id);
  static std::string TrainerFolder(absl::string_view name);

  // Returns a run that continues with the values in `folder`, which is created with the first
  // value. A folder has one run at a time.
  std::shared_ptr<TrackedRun> Open(absl::string_view folder) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes `folder`; its run is ignored from now on. Logs an error. Blocks on the disk.
  void Remove(absl::string_view folder) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class TrackedRun;
  enum class Kind { kAdd, kRestart, kFlush, kRemove };
  struct Change {
    Kind kind = Kind::kAdd;
    std::shared_ptr<TrackedRun> run;  // kRemove: nullptr if there is none
    TrackedValues values;             // kRestart: only the step
    std::string path;                 // kRemove
    absl::Notification* done = nullptr;
  };

  Tracking(std::string directory, FileDescriptor lock, const Clock* clock);

  // Drops values if too many changes wait.
  void Post(Change change) ABSL_LOCKS_EXCLUDED(mu_);
  bool MustWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // On the thread.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Apply(std::vector<Change> changes);

  const std::string directory_;
  const FileDescriptor lock_;
  const Clock* const clock_;

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool urgent_ ABSL_GUARDED_BY(mu_) = false;    // does not wait for the next second
  bool dropping_ ABSL_GUARDED_BY(mu_) = false;  // values were dropped since the last write
  std::vector<Change> changes_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::weak_ptr<TrackedRun>> runs_ ABSL_GUARDED_BY(mu_);  // by path

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
