// Alternate signal stacks of threads that compute.
#pragma once

namespace braid {

// Gives the calling thread an alternate signal stack until the thread ends, unless it has one. Some
// BLAS kernels use the stack pointer as a data pointer. A signal handler that runs on the normal
// stack, such as the SIGBUS handler for shared memory that a client has truncated, would then
// overwrite heap memory.
void InstallSignalStack();
// Same, for the `threads` OpenMP threads that compute with the calling thread, including itself.
void InstallSignalStacks(int threads);

}  // namespace braid
