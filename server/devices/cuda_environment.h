// Environment variables of CUDA and of LibTorch's GPU allocator.
#pragma once

#include <filesystem>

namespace braid {

// On a machine with several GPUs, prevents threads from waiting for a GPU inside CUDA: a thread
// that waits for a collective on one GPU while it delays the start of the collective on another one
// would deadlock. Sets, unless the user has set them:
// - CUDA_MODULE_LOADING=EAGER: loads all kernels when CUDA starts, not at their first use.
// - PYTORCH_ALLOC_CONF=expandable_segments:True: memory grows and shrinks by mapping pages, without
//   cudaFree(), which waits for the GPU.
//
// `root` contains proc, where the driver lists the GPUs; it is "/" except in tests. Call it before
// CUDA starts and LibTorch allocates, while no other thread reads the environment.
void SetCudaEnvironment(const std::filesystem::path& root);

}  // namespace braid
