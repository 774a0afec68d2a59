// Parameters and gradients of a replica as views of one contiguous buffer per dtype, so that
// reduce, update and broadcast are one call each.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/parallel/replica.h"

namespace braid {

// Location of a parameter: elements [offset, offset + numel) of `buffer`, padded to 64 bytes. A
// frozen parameter has an empty slot.
struct FlatSlot {
  size_t buffer = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t padded = 0;
};

// Copy of accumulated gradients.
struct SavedGradients {
  std::vector<at::Tensor> flat;
  std::vector<bool> reached;
};

// Thread-compatible: used by the replica's worker and by threads that synchronize with it.
class FlatParameters {
 public:
  // Moves `replica`'s parameters into flat buffers on their device. frozen: one per parameter, true
  // for parameters without gradients, which stay where they are; empty: none is frozen.
  explicit FlatParameters(Replica& replica, const std::vector<bool>& frozen = {});
  // Binds `replica`'s parameters to the buffers of `primary`, whose replica has the same
  // parameters, `frozen` included. Both replicas then share their values. Gradients are not shared.
  FlatParameters(Replica& replica, const std::vector<bool>& frozen, const FlatParameters& primary);

  // Values and gradients of the parameters that are not frozen: one buffer per dtype, in the order
  // in which parameters first use it.
  const std::vector<at::Tensor>& values() const { return values_; }
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  // Returns true if parameter `p` has no gradient.
  bool frozen(size_t p) const { return !gradient_views_[p].defined(); }
  // One slot per parameter, in the replica's order.
  const std::vector<FlatSlot>& slots() const { return slots_; }

  // Adds `gradients`, one per parameter, undefined for parameters that were not reached. first:
  // overwrites the flat gradients instead.
  void Accumulate(const std::vector<at::Tensor>& gradients, bool first);
  // Sets all gradients to zero and marks all parameters as not reached. Put() calls follow.
  void Clear();
  // Adds the gradient of parameter `p`. At most once per parameter after Clear().
  void Put(size_t p, const at::Tensor& gradient);
  // Marks the parameters with defined `gradients` as reached, and no others. The gradients are
  // stored elsewhere; the flat gradients are not used.
  void MarkReached(const std::vector<at::Tensor>& gradients);
  // Returns the parameters that were reached since the last call with `first`, Clear() or
  // MarkReached().
  const std::vector<bool>& reached() const { return reached_; }
  // Returns a view of the gradient of parameter `p` with the parameter's shape. Undefined for a
  // frozen parameter.
  const at::Tensor& gradient(size_t p) const { return gradient_views_[p]; }

  // Copies the accumulated gradients.
  SavedGradients SaveGradients() const;
  void RestoreGradients(const SavedGradients& saved);

 private:
  FlatParameters(Replica& replica, const std::vector<bool>& frozen, const FlatParameters* primary);

  std::vector<FlatSlot> slots_;
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> value_views_;  // one per parameter; a frozen one's own memory
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> gradient_views_;
  std::vector<bool> reached_;
};

}  // namespace braid
