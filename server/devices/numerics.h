// How LibTorch computes, for the whole process.
#pragma once

namespace braid {

// `tf32`: float32 matrix products and convolutions on GPUs may round their inputs to TF32.
// `deterministic`: algorithms that give the same bits every time; an operator that has none fails.
// Before any work on a device.
void SetNumerics(bool tf32, bool deterministic);

}  // namespace braid
