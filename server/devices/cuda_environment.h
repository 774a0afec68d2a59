// Environment variables for CUDA and for LibTorch's allocator of GPU memory.
#pragma once

#include <filesystem>

namespace braid {

// On a machine with several GPUs, keeps threads from waiting for a GPU inside of CUDA. If such a
// thread waits for a collective on one GPU while it holds up the begin of the collective on
// another, neither goes on.
// - CUDA_MODULE_LOADING=EAGER: all kernels are loaded when CUDA starts, not at their first use.
// - PYTORCH_ALLOC_CONF=expandable_segments:True: memory grows and shrinks by mapping pages, without
//   cudaFree, which waits for all that runs on the GPU.
// What the user has set stays. `root`: of the file system, where the driver lists the GPUs.
//
// Called before CUDA starts and before LibTorch allocates, while no other thread reads the
// environment.
void SetCudaEnvironment(const std::filesystem::path& root);

}  // namespace braid
