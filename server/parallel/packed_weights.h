// Prepacked weights for faster linear layers on CPUs.
//
// oneDNN packs a weight matrix once into its own layout. A product with a dozen rows then takes
// about half the time of LibTorch's product, and with hundreds of rows 90 %. For small matrices it
// is slower. Inputs with a few rows use FewRowsLinear() on the original matrix.
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

// Packed weights of a set of replicas. Each matrix is packed at its first use, once for all
// replicas, which have equal values. Uses as much memory as the matrices of one replica.
// Thread-safe.
class PackedWeights {
 public:
  // Keeps the replicas' weights alive. A matrix that is modified later is not used any more, by
  // LibTorch's version counter. Writes through Tensor.data are not counted and not noticed.
  explicit PackedWeights(const ReplicaSet& replicas);

  // Within its scope, linear layers on the calling thread use `weights`, which must outlive it, or
  // FewRowsLinear(), if that is faster.
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

  // Returns the packed form of `weight`; nullptr if it is not a matrix of the replicas.
  const at::Tensor* Find(const at::Tensor& weight) const;

 private:
  struct Packed {
    absl::once_flag once;
    at::Tensor value;  // undefined before packing, and after an error
  };
  struct Entry {
    at::Tensor weight;
    int64_t version;  // LibTorch's version counter
    std::shared_ptr<Packed> packed;
  };

  absl::flat_hash_map<const void*, Entry> entries_;  // by data pointer
};

}  // namespace braid
