// Workers that run one function together and synchronize at barriers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/devices/device.h"
#include "server/devices/worker.h"

namespace braid {

// Ranks of a worker group that have a barrier of their own.
using RankGroup = std::vector<size_t>;

// One run of a worker group. Owned by RunWorkerGroup(). Thread-safe.
class WorkerGroup {
 public:
  size_t size() const { return workers_.size(); }
  Worker& worker(size_t rank) const { return *workers_[rank]; }

  // Waits for all ranks. Called by rank `rank` on its worker. What a rank wrote before the barrier,
  // on the host or on its device, is visible to all ranks after it. Devices with streams are
  // ordered by events and are not synchronized, so the host must not read their memory yet. A
  // tensor that another rank may be reading must not be freed before the next barrier. Returns
  // CANCELLED on all ranks if one of them has failed, or if ranks wait at different barriers; they
  // must then return.
  absl::Status Barrier(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);
  // Same, for the ranks of `groups[group]` only, which include `rank`.
  absl::Status Barrier(size_t group, size_t rank) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend absl::Status RunWorkerGroup(const std::vector<Worker*>& workers,
                                     const std::vector<RankGroup>& groups,
                                     absl::FunctionRef<absl::Status(WorkerGroup&, size_t)> work);

  // Reusable barrier. Changed with WorkerGroup::mu_ held.
  struct BarrierState {
    explicit BarrierState(size_t members) : present(members) {}

    size_t present;  // ranks that have not returned
    size_t arrived = 0;
    // Number of times that it was released. Ranks wait for a change.
    std::atomic<uint32_t> generation{0};
    // Result of the latest release. Valid until all ranks have reached the next barrier.
    std::atomic<bool> failed{false};
    // By rank: when its device had done all that came before the barrier; nullptr for a device
    // without streams. Two sets in turn: a rank fills a set again only after all ranks have arrived
    // at the barrier in between, so have used this set.
    std::array<std::vector<std::unique_ptr<DeviceEvent>>, 2> events;
  };

  WorkerGroup(const std::vector<Worker*>& workers, const std::vector<RankGroup>& groups);

  absl::Status BarrierAt(BarrierState& barrier, size_t rank) ABSL_LOCKS_EXCLUDED(mu_);
  // Orders what the rank's device does next after what the others' had done before the barrier.
  absl::Status FollowOthers(const std::vector<std::unique_ptr<DeviceEvent>>& events,
                            size_t rank) const;
  // Records that the rank has returned `result`.
  void Leave(size_t rank, const absl::Status& result) ABSL_LOCKS_EXCLUDED(mu_);
  void Release(BarrierState& barrier) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fails all barriers if every rank waits at one.
  void EndDeadlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status first_error() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<Worker*>& workers_;
  const std::vector<RankGroup>& groups_;
  // First the barrier of all ranks, then those of the groups.
  std::vector<std::unique_ptr<BarrierState>> barriers_;

  mutable absl::Mutex mu_;
  size_t present_ ABSL_GUARDED_BY(mu_);
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  // Later errors may be consequences of the first one.
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
};

// Runs `work(group, rank)` on `workers[rank]` for every rank at the same time, synchronizes the
// devices and blocks until all have ended. Returns the first error in time. Groups that share
// workers reach them in one order, so they do not deadlock. Must not be called by a worker.
absl::Status RunWorkerGroup(const std::vector<Worker*>& workers,
                            const std::vector<RankGroup>& groups,
                            absl::FunctionRef<absl::Status(WorkerGroup&, size_t)> work);

}  // namespace braid
