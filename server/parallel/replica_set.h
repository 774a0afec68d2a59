// All replicas with the same weights, each with the worker that it runs on. The first replica is
// the primary.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "server/devices/worker.h"
#include "server/parallel/replica.h"

namespace braid {

// Immutable after construction, except for the replicas themselves.
class ReplicaSet {
 public:
  // `replicas[r]` runs on `workers[r]`. The workers must outlive the set.
  ReplicaSet(std::vector<Worker*> workers, std::vector<std::unique_ptr<Replica>> replicas)
      : workers_(std::move(workers)), replicas_(std::move(replicas)) {}

  size_t size() const { return replicas_.size(); }
  Replica& replica(size_t r) const { return *replicas_[r]; }
  Worker& worker(size_t r) const { return *workers_[r]; }
  const std::vector<Worker*>& workers() const { return workers_; }
  // Returns the workers of the first `n` replicas.
  std::vector<Worker*> first_workers(size_t n) const {
    return {workers_.begin(), workers_.begin() + static_cast<std::ptrdiff_t>(n)};
  }

 private:
  std::vector<Worker*> workers_;
  std::vector<std::unique_ptr<Replica>> replicas_;
};

}  // namespace braid
