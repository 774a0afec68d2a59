#include "server/devices/worker_group.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"

namespace braid {
namespace {

// Spins for a while before it sleeps: ranks usually reach a barrier within microseconds of each
// other, and waking a thread takes tens of microseconds. Does not yield, because on a busy machine
// another thread would keep the core for milliseconds.
void WaitForChange(const std::atomic<uint32_t>& value, uint32_t before) {
  constexpr absl::Duration kSpinTime = absl::Microseconds(50);
  const absl::Time until = absl::Now() + kSpinTime;
  while (value.load(std::memory_order_acquire) == before && absl::Now() < until) {
  }
  value.wait(before, std::memory_order_acquire);
}

}  // namespace

WorkerGroup::WorkerGroup(const std::vector<Worker*>& workers, const std::vector<RankGroup>& groups)
    : workers_(workers), groups_(groups), present_(workers.size()) {
  barriers_.push_back(std::make_unique<BarrierState>(workers.size()));
  for (const RankGroup& group : groups_) {
    barriers_.push_back(std::make_unique<BarrierState>(group.size()));
  }
  for (const std::unique_ptr<BarrierState>& barrier : barriers_) {
    for (std::vector<std::unique_ptr<DeviceEvent>>& events : barrier->events) {
      events.resize(workers.size());
    }
  }
}

absl::Status WorkerGroup::Barrier(size_t rank) { return BarrierAt(*barriers_[0], rank); }

absl::Status WorkerGroup::Barrier(size_t group, size_t rank) {
  return BarrierAt(*barriers_[1 + group], rank);
}

absl::Status WorkerGroup::BarrierAt(BarrierState& barrier, size_t rank) {
  Worker& worker = *workers_[rank];
  if (!worker.healthy()) {
    return worker.LostStatus();
  }
  std::unique_ptr<DeviceEvent> event = worker.device().RecordEvent();
  if (event == nullptr) {
    BRAID_RETURN_IF_ERROR(worker.Synchronize());
  }
  uint32_t before = 0;
  {
    const absl::MutexLock lock(&mu_);
    before = barrier.generation.load(std::memory_order_relaxed);
    barrier.events[before % 2][rank] = std::move(event);
    ++waiting_;
    if (++barrier.arrived == barrier.present) {
      Release(barrier);
    } else {
      EndDeadlock();
    }
  }
  WaitForChange(barrier.generation, before);
  if (barrier.failed.load(std::memory_order_relaxed)) {
    return absl::CancelledError("another replica failed");
  }
  return FollowOthers(barrier.events[before % 2], rank);
}

absl::Status WorkerGroup::FollowOthers(const std::vector<std::unique_ptr<DeviceEvent>>& events,
                                       size_t rank) const {
  for (size_t other = 0; other < events.size(); ++other) {
    if (other != rank && events[other] != nullptr) {
      BRAID_RETURN_IF_ERROR(workers_[rank]->device().WaitEvent(*events[other]));
    }
  }
  return absl::OkStatus();
}

void WorkerGroup::Release(BarrierState& barrier) {
  waiting_ -= barrier.arrived;
  barrier.arrived = 0;
  barrier.failed.store(failed_, std::memory_order_relaxed);
  barrier.generation.fetch_add(1, std::memory_order_release);
  barrier.generation.notify_all();
}

void WorkerGroup::EndDeadlock() {
  if (waiting_ < present_ || present_ == 0) {
    return;
  }
  failed_ = true;
  first_error_.Update(absl::InternalError(
      "replicas deadlocked: control flow diverged between them (not supported with synchronized "
      "batch norm)"));
  for (const std::unique_ptr<BarrierState>& barrier : barriers_) {
    if (barrier->arrived > 0) {
      Release(*barrier);
    }
  }
}

void WorkerGroup::Leave(size_t rank, const absl::Status& result) {
  const absl::MutexLock lock(&mu_);
  first_error_.Update(result);
  failed_ = failed_ || !result.ok();
  --present_;
  for (size_t m = 0; m < barriers_.size(); ++m) {
    BarrierState& barrier = *barriers_[m];
    const bool member = m == 0 || std::find(groups_[m - 1].begin(), groups_[m - 1].end(), rank) !=
                                      groups_[m - 1].end();
    if (!member) continue;
    --barrier.present;
    if (barrier.present > 0 && barrier.arrived == barrier.present) Release(barrier);
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
  Worker::PostToAll(workers, [&](size_t rank) -> Worker::Task {
    return [&, rank] {
      const absl::Status result =
          RunAndSynchronize(*workers[rank], [&] { return work(worker_group, rank); });
      worker_group.Leave(rank, result);
      running.DecrementCount();
    };
  });
  running.Wait();
  return worker_group.first_error();
}

}  // namespace braid
