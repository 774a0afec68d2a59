// LibTorch's settings for the process and for threads.
#pragma once

namespace braid {

// Sets how LibTorch computes. Must precede any work on a device.
// `tf32`: float32 matrix products and convolutions on GPUs may round their inputs to TF32.
// `deterministic`: uses only algorithms that always give the same bits; operators without one fail.
void SetNumerics(bool tf32, bool deterministic);

// Limits LibTorch's messages on stderr to errors, because warnings are for authors of models. Must
// precede the use of LibTorch by other threads.
void LimitTorchLog();

// Sets the calling thread up to compute for a device: `threads` intra-op threads (at least 1),
// TorchScript without its profiling optimizer, whose first calls at each shape are ten times slower
// than later ones, and backward passes on the calling thread instead of LibTorch's own threads.
void SetUpWorkerThread(int threads);

}  // namespace braid
