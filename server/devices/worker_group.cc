#include "server/devices/worker_group.h"

#include <algorithm>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"

namespace braid {
namespace {

// Held while a worker group is posted: two that share two workers must reach both in one order,
// else each would wait for the other.
ABSL_CONST_INIT absl::Mutex posting_mutex(absl::kConstInit);

// Ranks come to a meeting within microseconds of each other, and to be woken takes tens of them. So
// each first looks for the others for a while. It does not yield meanwhile: on a busy machine
// whoever goes first stays for milliseconds, longer than one who sleeps has to wait.
void WaitForChange(const std::atomic<uint32_t>& value, uint32_t before) {
  constexpr absl::Duration kLooking = absl::Microseconds(50);
  const absl::Time until = absl::Now() + kLooking;
  while (value.load(std::memory_order_acquire) == before && absl::Now() < until) {
  }
  value.wait(before, std::memory_order_acquire);
}

}  // namespace

WorkerGroup::WorkerGroup(const std::vector<Worker*>& workers, const std::vector<RankGroup>& groups)
    : workers_(workers), groups_(groups), present_(workers.size()) {
  meetings_.push_back(std::make_unique<BarrierState>(workers.size()));
  for (const RankGroup& group : groups_) {
    meetings_.push_back(std::make_unique<BarrierState>(group.size()));
  }
  for (const std::unique_ptr<BarrierState>& meeting : meetings_) {
    for (std::vector<std::unique_ptr<Moment>>& moments : meeting->moments) {
      moments.resize(workers.size());
    }
  }
}

absl::Status WorkerGroup::Barrier(size_t rank) { return BarrierAt(*meetings_[0], rank); }

absl::Status WorkerGroup::Barrier(size_t group, size_t rank) {
  return BarrierAt(*meetings_[1 + group], rank);
}

absl::Status WorkerGroup::BarrierAt(BarrierState& meeting, size_t rank) {
  Worker& worker = *workers_[rank];
  if (!worker.healthy()) {
    return worker.LostStatus();
  }
  std::unique_ptr<Moment> moment = worker.device().Mark();
  if (moment == nullptr) {
    BRAID_RETURN_IF_ERROR(worker.Synchronize());
  }
  uint32_t before = 0;
  {
    const absl::MutexLock lock(&mu_);
    before = meeting.held.load(std::memory_order_relaxed);
    meeting.moments[before % 2][rank] = std::move(moment);
    ++waiting_;
    if (++meeting.arrived == meeting.present) {
      Open(meeting);
    } else {
      EndDeadlock();
    }
  }
  WaitForChange(meeting.held, before);
  if (meeting.failed.load(std::memory_order_relaxed)) {
    return absl::CancelledError("another replica failed");
  }
  return FollowOthers(meeting.moments[before % 2], rank);
}

absl::Status WorkerGroup::FollowOthers(const std::vector<std::unique_ptr<Moment>>& moments,
                                       size_t rank) const {
  for (size_t other = 0; other < moments.size(); ++other) {
    if (other != rank && moments[other] != nullptr) {
      BRAID_RETURN_IF_ERROR(workers_[rank]->device().WaitFor(*moments[other]));
    }
  }
  return absl::OkStatus();
}

void WorkerGroup::Open(BarrierState& meeting) {
  waiting_ -= meeting.arrived;
  meeting.arrived = 0;
  meeting.failed.store(failed_, std::memory_order_relaxed);
  meeting.held.fetch_add(1, std::memory_order_release);
  meeting.held.notify_all();
}

void WorkerGroup::EndDeadlock() {
  if (waiting_ < present_ || present_ == 0) {
    return;
  }
  failed_ = true;
  first_error_.Update(absl::InternalError(
      "replicas wait for each other: the model takes another way on each of them, which it may not "
      "with synchronized batch norm"));
  for (const std::unique_ptr<BarrierState>& meeting : meetings_) {
    if (meeting->arrived > 0) {
      Open(*meeting);
    }
  }
}

void WorkerGroup::Leave(size_t rank, const absl::Status& result) {
  const absl::MutexLock lock(&mu_);
  first_error_.Update(result);
  failed_ = failed_ || !result.ok();
  --present_;
  for (size_t m = 0; m < meetings_.size(); ++m) {
    BarrierState& meeting = *meetings_[m];
    const bool member = m == 0 || std::find(groups_[m - 1].begin(), groups_[m - 1].end(), rank) !=
                                      groups_[m - 1].end();
    if (!member) continue;
    --meeting.present;
    if (meeting.present > 0 && meeting.arrived == meeting.present) Open(meeting);
  }
  EndDeadlock();
}

absl::Status WorkerGroup::first_error() const {
  const absl::MutexLock lock(&mu_);
  return first_error_;
}

absl::Status RunWorkerGroup(const std::vector<Worker*>& workers,
                            const std::vector<RankGroup>& groups,
                            absl::FunctionRef<absl::Status(WorkerGroup&, size_t)> work) {
  WorkerGroup worker_group(workers, groups);
  absl::BlockingCounter running(static_cast<int>(workers.size()));
  {
    const absl::MutexLock posting(&posting_mutex);
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      workers[rank]->Post([&, rank] {
        absl::Status result = CatchTorch([&] { return work(worker_group, rank); });
        // Also after an error: what was begun has to end.
        if (const absl::Status ended = workers[rank]->Synchronize(); !workers[rank]->healthy()) {
          result = ended;  // whatever came of it
        } else {
          result.Update(ended);
        }
        worker_group.Leave(rank, result);
        running.DecrementCount();
      });
    }
  }
  running.Wait();
  return worker_group.first_error();
}

}  // namespace braid
