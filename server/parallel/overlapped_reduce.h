// Sums the replicas' gradients bucket by bucket while their backward passes go on.
//
// Buckets are summed in one order, whatever the order in which the replicas finish them; the last
// replica to finish one begins its sum. For an update of one batch: what the flat gradients held
// before is lost.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/devices/communicator.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/gradient_buckets.h"

namespace braid {

// Thread-safe: each rank's calls come from its worker. What it is given outlives it.
class OverlappedReduce {
 public:
  // `flat`: of each rank, all of one model. `frozen`: parameters that get no gradient. `all`: the
  // sums go to every rank, else to the primary.
  OverlappedReduce(Communicator& communicator, std::vector<FlatParameters*> flat,
                   const std::vector<bool>& frozen, bool all, const BucketSizes& sizes = {});

  // Before the rank's backward pass.
  void Begin(size_t rank);
  // Of parameter `parameter`, once.
  void Add(size_t rank, size_t parameter, const at::Tensor& gradient) ABSL_LOCKS_EXCLUDED(mu_);
  // After it: what has not come is zero. Returns what failed in beginning the sums.
  absl::Status End(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);
  // When every rank has ended or failed: waits for the sums on the rank's device.
  absl::Status Wait(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The rank has all of the bucket.
  void Finish(size_t rank, size_t bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status BeginSum(size_t bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Immutable after construction.
  Communicator& communicator_;
  const std::vector<FlatParameters*> flat_;
  const bool all_;
  const std::vector<GradientBucket> buckets_;
  std::vector<size_t> bucket_of_;  // by parameter

  // By rank and bucket: gradients to come. Each rank's are touched by its worker alone.
  std::vector<std::vector<size_t>> missing_;

  absl::Mutex mu_;
  // By bucket: ranks that have not finished it.
  std::vector<size_t> waiting_ ABSL_GUARDED_BY(mu_);
  // The first bucket whose sum has not begun.
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
