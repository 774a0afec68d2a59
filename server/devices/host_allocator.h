// LibTorch's memory on the CPU, counted for each thread.
#pragma once

#include <cstdint>

namespace braid {

// Has LibTorch allocate through a counter from now on, and malloc keep what is freed. Where there
// is no memory to be had it throws c10::OutOfMemoryError, which says what was wanted and what there
// is. Before any other use of LibTorch; once.
void InstallHostAllocator();

// Of the calling thread: what it allocated less what it freed, and the most of it since
// ResetHostPeak().
int64_t HostBytes();
int64_t HostPeak();
void ResetHostPeak();

// What the machine, or the container's limit, has left, in bytes.
int64_t FreeHostBytes();

}  // namespace braid
