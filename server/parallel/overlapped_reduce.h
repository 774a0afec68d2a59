// All-reduce of gradients that overlaps with the backward pass.
//
// Gradients are grouped into buckets, contiguous runs of the flat gradient buffers. The reduction
// of a bucket starts when the last replica has finished it. Buckets are reduced in one fixed order,
// in whatever order the replicas finish them. For updates of a single batch: earlier contents of
// the flat gradients are lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/devices/communicator.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/flat_slice.h"

namespace braid {

// `slice` of flat buffer `buffer`, which holds the gradients of `parameters`.
struct GradientBucket {
  size_t buffer = 0;
  Slice slice;
  std::vector<size_t> parameters;
};

// Minimum bucket sizes in bytes; the last bucket of a buffer may be smaller. The first bucket is
// small so that the first reduction starts early. PyTorch's DistributedDataParallel has the same
// sizes.
struct BucketSizes {
  int64_t first = int64_t{1} << 20;
  int64_t others = int64_t{25} << 20;
};

// Assigns every parameter that is not frozen to one bucket, in the order in which a backward pass
// probably finishes them: the parameters of the last layers first.
std::vector<GradientBucket> MakeBuckets(const FlatParameters& flat, const BucketSizes& sizes = {});

// Thread-safe. Each rank's calls come from its worker. The constructor's references must outlive
// this object.
class OverlappedReduce {
 public:
  // flat: one per rank, all of the same model. all: true sends the sums to every rank, false only
  // to the primary.
  OverlappedReduce(Communicator& communicator, std::vector<FlatParameters*> flat, bool all,
                   const BucketSizes& sizes = {});

  // Call it before the rank's backward pass.
  void Begin(size_t rank);
  // Adds the gradient of `parameter`. At most one call for each parameter.
  void Add(size_t rank, size_t parameter, const at::Tensor& gradient) ABSL_LOCKS_EXCLUDED(mu_);
  // Call it after the rank's backward pass. Missing gradients count as zero. Returns the first
  // error of starting the reductions.
  absl::Status End(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the sums on the rank's device. Call it when every rank has ended or failed.
  absl::Status Wait(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Records that the rank has all gradients of `bucket`.
  void Finish(size_t rank, size_t bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status BeginSum(size_t bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  Communicator& communicator_;
  const std::vector<FlatParameters*> flat_;
  const bool all_;
  const std::vector<GradientBucket> buckets_;
  std::vector<size_t> bucket_of_;  // by parameter

  // Number of gradients still to come, by rank and bucket. Each rank's entries are used by its
  // worker only.
  std::vector<std::vector<size_t>> missing_;

  absl::Mutex mu_;
  // Number of ranks that have not finished a bucket, by bucket.
  std::vector<size_t> waiting_ ABSL_GUARDED_BY(mu_);
  // The first bucket whose reduction has not started.
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
