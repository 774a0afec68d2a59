// Copies of a replica's buffers (batch norm statistics), packed into one tensor per datatype.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"

namespace braid {

// ResNet-50 has 159 buffers of two datatypes: packed, they take two transfers to another device and
// one check for finite values. Owned by a stage. Thread-compatible: used on the stage's workers.
class FlatBuffers {
 public:
  FlatBuffers() = default;
  // Copies `values`, all on one device, into new memory there.
  explicit FlatBuffers(const std::vector<at::Tensor>& values);

  bool empty() const { return views_.empty(); }
  // Overwrites the copies with `values`, which have the shapes and datatypes of the first ones.
  void Assign(const std::vector<at::Tensor>& values);
  // Returns the buffers in order, as views of flat().
  const std::vector<at::Tensor>& views() const { return views_; }
  // Returns one 1-D tensor per datatype; padding between the buffers is zero.
  const std::vector<at::Tensor>& flat() const { return flat_; }
  // Returns the buffers in order on `device`: views of one copy per datatype, or of flat() itself
  // if it is on `device`. Does not wait for the copies.
  std::vector<at::Tensor> On(c10::Device device) const;

 private:
  // Elements [offset, offset + numel) of flat tensor `flat` hold one buffer.
  struct Slot {
    size_t flat = 0;
    int64_t offset = 0;
  };

  std::vector<at::Tensor> Views(const std::vector<at::Tensor>& flat,
                                const std::vector<at::Tensor>& like) const;

  std::vector<Slot> slots_;
  std::vector<at::Tensor> flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace braid
