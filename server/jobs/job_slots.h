// Decides which jobs run: by priority, with limits. Pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/jobs/job_record.h"

namespace braid {

struct JobLimits {
  int64_t running = 1;
  int64_t running_per_identity = 0;  // 0: no limit
};

struct Preemption {
  std::string job;       // running; must stop
  std::string by;        // queued; of strictly higher priority
  int64_t priority = 0;  // of `by`
};

struct JobSlots {
  std::vector<std::string> start;  // queued jobs that are to run, the first one first
  std::vector<Preemption> preempt;
};

// Fills the slots in the order of priority. At equal priority, a running job keeps its slot, and
// then the order of the lists counts. A job whose identity has reached its limit is passed over.
// `running`: jobs that run and need not stop, in the order of submission. `queued`: in the order of
// JobStore::Queued(). If the caller starts and stops the jobs of the result and no other job comes
// or goes, the next result is empty.
JobSlots AssignSlots(const std::vector<QueuedJob>& running, const std::vector<QueuedJob>& queued,
                     const JobLimits& limits);

}  // namespace braid
