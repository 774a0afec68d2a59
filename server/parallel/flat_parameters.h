// A replica's parameters, and their gradients, as views of one contiguous buffer for each dtype, so
// that reduce, update and broadcast are one call each.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/parallel/replica.h"

namespace braid {

// A parameter's place: `buffer` and elements [offset, offset + numel), padded to 64 bytes.
struct FlatSlot {
  size_t buffer = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t padded = 0;
};

struct SavedGradients {
  std::vector<at::Tensor> flat;
  std::vector<bool> reached;
};

// Used by the replica's worker, and by whoever synchronizes with it.
class FlatParameters {
 public:
  // Moves `replica`'s parameters into flat buffers on their device.
  explicit FlatParameters(Replica& replica);
  // The same, but `replica`, which has the same parameters as `primary`'s, has them where the
  // primary has: what changes one changes both. The gradients are its own.
  FlatParameters(Replica& replica, const FlatParameters& primary);

  // One a dtype, in the order in which the parameters first use it.
  const std::vector<at::Tensor>& values() const { return values_; }
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  // One a parameter, in the replica's order.
  const std::vector<FlatSlot>& slots() const { return slots_; }

  // Adds `gradients`, one a parameter, undefined for one that was not reached; `first`: whatever
  // the flat gradient holds is overwritten instead.
  void Accumulate(const std::vector<at::Tensor>& gradients, bool first);
  // The same one by one, as a backward pass makes them: none has been reached ...
  void Clear();
  // ... then parameter `p`, once.
  void Put(size_t p, const at::Tensor& gradient);
  // `gradients` are the first, but kept elsewhere: the flat gradient counts for nothing.
  void MarkReached(const std::vector<at::Tensor>& gradients);
  // Which parameters have been reached since the last first one.
  const std::vector<bool>& reached() const { return reached_; }
  // The gradient of parameter `p`, of its shape: a view.
  const at::Tensor& gradient(size_t p) const { return gradient_views_[p]; }

  // A copy of the accumulated gradients, to go back to.
  SavedGradients SaveGradients() const;
  void RestoreGradients(const SavedGradients& saved);

 private:
  FlatParameters(Replica& replica, const FlatParameters* primary);

  std::vector<FlatSlot> slots_;
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> gradient_views_;
  std::vector<bool> reached_;
};

}  // namespace braid
