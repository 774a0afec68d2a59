// Linear layers on a CPU whose weights do not change, faster.
//
// oneDNN multiplies by a matrix that it has laid out for itself once. Of a batch of a dozen rows
// this takes about half the time that LibTorch's own product takes, of hundreds nine tenths; by a
// small matrix it takes longer. Of a few rows it is FewRowsLinear(), by the matrix as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "server/devices/thread_kernels.h"
#include "server/parallel/replica_set.h"

namespace braid {

// The weights of replicas, each laid out when it is first of use, once for all replicas, which hold
// the same values. That takes as much memory again as the matrices of one replica. Thread-safe.
class PackedWeights {
 public:
  // Keeps the memory of the replicas' weights, and looks at what is written to them: a matrix that
  // has changed since is not taken any more. What is written through Tensor.data LibTorch does not
  // count, and it is not seen.
  explicit PackedWeights(const ReplicaSet& replicas);

  // The linear layers of the calling thread take `weights`, which outlive it, for its scope, where
  // they are and where that is faster; those of few rows take FewRowsLinear().
  class Use {
   public:
    explicit Use(const PackedWeights& weights);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const PackedWeights* const outer_;
    const ThreadKernelsGuard kernels_;
  };

  // What is multiplied by in place of `weight`; nullptr where it is not one of the replicas'.
  const at::Tensor* Find(const at::Tensor& weight) const;

 private:
  struct Packed {
    absl::once_flag once;
    at::Tensor value;  // undefined before, and if there was no memory
  };
  struct Entry {
    at::Tensor weight;
    int64_t version;  // as LibTorch counts what is written to it
    std::shared_ptr<Packed> packed;
  };

  absl::flat_hash_map<const void*, Entry> entries_;  // by the address of the numbers
};

}  // namespace braid
