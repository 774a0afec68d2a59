// Workers that do one thing together, in phases: each rank runs the same function on its worker,
// and waits for the others where they meet.
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

// Ranks of a worker group that also meet among themselves.
using RankGroup = std::vector<size_t>;

// One run of a worker group. Thread-safe.
class WorkerGroup {
 public:
  size_t size() const { return workers_.size(); }
  Worker& worker(size_t rank) const { return *workers_[rank]; }

  // Waits for all ranks. Called by rank `rank` on its worker. What a rank wrote before the barrier,
  // on the host or on its device, is visible to all ranks after it. Devices with streams are
  // ordered by events and are not synchronized, so the host must not read their memory yet. A
  // tensor that another rank may be reading must not be freed before the next barrier. CANCELLED,
  // for all ranks at the barrier, if a rank has failed, or if ranks wait for each other at
  // different barriers: then all return.
  absl::Status Barrier(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);
  // The same among the ranks of `groups[group]`, of which `rank` is one.
  absl::Status Barrier(size_t group, size_t rank) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend absl::Status RunWorkerGroup(const std::vector<Worker*>& workers,
                                     const std::vector<RankGroup>& groups,
                                     absl::FunctionRef<absl::Status(WorkerGroup&, size_t)> work);

  // Where some ranks meet, again and again. Changed under the worker group's lock.
  struct BarrierState {
    explicit BarrierState(size_t members) : present(members) {}

    size_t present;
    size_t arrived = 0;
    // How often all have met; waited on.
    std::atomic<uint32_t> held{0};
    // How the last one went: it stays until all have come to the next.
    std::atomic<bool> failed{false};
    // By rank: when its device had done all that came before the barrier; nullptr for a device
    // without streams. Two sets in turn: a rank fills a set again only after all ranks have arrived
    // at the barrier in between, so have used this set.
    std::array<std::vector<std::unique_ptr<Moment>>, 2> moments;
  };

  WorkerGroup(const std::vector<Worker*>& workers, const std::vector<RankGroup>& groups);

  absl::Status BarrierAt(BarrierState& meeting, size_t rank) ABSL_LOCKS_EXCLUDED(mu_);
  // Orders what the rank's device does next after what the others' had done before the barrier.
  absl::Status FollowOthers(const std::vector<std::unique_ptr<Moment>>& moments, size_t rank) const;
  // The rank has returned `result`.
  void Leave(size_t rank, const absl::Status& result) ABSL_LOCKS_EXCLUDED(mu_);
  void Open(BarrierState& meeting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where everybody waits, nobody will come.
  void EndDeadlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status first_error() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<Worker*>& workers_;
  const std::vector<RankGroup>& groups_;
  // Of all ranks, and then of each group.
  std::vector<std::unique_ptr<BarrierState>> meetings_;

  mutable absl::Mutex mu_;
  size_t present_ ABSL_GUARDED_BY(mu_);
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  // The first to come: the others may be its echoes.
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
};

// Runs `work(worker group, rank)` on `workers[rank]` for every rank at the same time, each followed
// by the device's synchronization, and waits for all. Returns the first error to come. Worker
// groups that share workers reach them in one order, so none waits for a rank that is behind it.
// Not to be called by a worker.
absl::Status RunWorkerGroup(const std::vector<Worker*>& workers,
                            const std::vector<RankGroup>& groups,
                            absl::FunctionRef<absl::Status(WorkerGroup&, size_t)> work);

}  // namespace braid
