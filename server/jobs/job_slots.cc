#include "server/jobs/job_slots.h"

#include <algorithm>
#include <map>

namespace braid {
namespace {

struct Candidate {
  const QueuedJob* job = nullptr;
  bool runs = false;
};

}  // namespace

JobSlots AssignSlots(const std::vector<QueuedJob>& running, const std::vector<QueuedJob>& queued,
                     const JobLimits& limits) {
  std::vector<Candidate> candidates;
  for (const QueuedJob& job : running) {
    candidates.push_back({&job, true});
  }
  for (const QueuedJob& job : queued) {
    candidates.push_back({&job, false});
  }
  std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
    return a.job->priority > b.job->priority;
  });
  JobSlots slots;
  int64_t taken = 0;
  std::map<std::string, int64_t> by_identity;
  // The queued jobs that have taken a slot last, of all and of each identity.
  const QueuedJob* last = nullptr;
  std::map<std::string, const QueuedJob*> last_by_identity;
  for (const auto& [job, runs] : candidates) {
    const bool identity_full = limits.running_per_identity > 0 &&
                               by_identity[job->identity] >= limits.running_per_identity;
    if (taken < limits.running && !identity_full) {
      ++taken;
      ++by_identity[job->identity];
      if (!runs) {
        slots.start.push_back(job->id);
        last = last_by_identity[job->identity] = job;
      }
      continue;
    }
    const QueuedJob* const by = identity_full ? last_by_identity[job->identity] : last;
    if (runs && by != nullptr) {
      slots.preempt.push_back({job->id, by->id, by->priority});
    }
  }
  return slots;
}

}  // namespace braid
