// Keeps steps of training jobs behind those of clients' trainers, on devices with one worker for
// both.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

// A job's step waits until no client trainer has used its devices for kQuietTime. It waits at most
// 19 times the duration of the job's previous step, so jobs keep 5 % of the device time, and never
// longer than kMaxWait. Workers run parts of steps in the order in which they were posted, so the
// order is decided here, before any part is posted. Thread-safe.
class JobGate {
 public:
  static constexpr absl::Duration kQuietTime = absl::Milliseconds(20);
  static constexpr absl::Duration kMaxWait = absl::Seconds(10);

  // `devices`: those with one worker; steps on others do not wait.
  explicit JobGate(std::set<std::string> devices) : devices_(std::move(devices)) {}
  JobGate(const JobGate&) = delete;
  JobGate& operator=(const JobGate&) = delete;

  // Scope of an operation of a trainer on `devices`. The constructor blocks if `of_job`.
  class Turn {
   public:
    Turn(JobGate& gate, const std::vector<std::string>& devices, bool of_job);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    JobGate& gate_;
    const std::vector<std::string>& devices_;
    const bool of_job_;
    absl::Time start_;
  };

 private:
  struct Use {
    int clients = 0;                                 // operations of clients that run
    absl::Time client_ended = absl::InfinitePast();  // the latest operation of a client
    absl::Time job_due = absl::InfinitePast();  // deadline after which a waiting job runs anyway
  };

  // Returns when a job may use all of `devices` if nothing changes until then.
  absl::Time NextTurnTime(const std::vector<std::string>& devices) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::set<std::string> devices_;

  absl::Mutex mu_;
  absl::CondVar client_ended_;
  std::map<std::string, Use> uses_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
