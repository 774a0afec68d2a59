// Memory that published versions and checkpoints read while their trainer continues.
//
// They copy nothing: their tensors use the trainer's memory. Before its next update, the trainer
// moves its values to other memory, unless nothing uses them any more.
#pragma once

#include "ATen/core/Tensor.h"

namespace braid {

// Returns a tensor, with a storage of its own, on the memory of `view`, which is a contiguous view
// of `whole`. `whole` starts its storage. Keeps the memory alive.
at::Tensor ShareMemory(const at::Tensor& whole, const at::Tensor& view);

// Call before the values of `whole` change. If a tensor of ShareMemory() uses its memory, copies
// the values to other memory, which `whole` and all its views then use. Keeps up to one piece of
// memory that it has left and that is unused, to copy into it the next time. Without other threads
// that use `whole`; tensors of ShareMemory() may be used and freed.
void LeaveSharedMemory(const at::Tensor& whole);

}  // namespace braid
