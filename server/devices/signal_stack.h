// Alternate signal stacks of threads that compute.
#pragma once

namespace braid {

// Gives the calling thread an alternate signal stack until it ends, unless it has one. Kernels of
// matrix products point the stack register into a buffer of theirs. A signal handler on "the
// stack", such as the SIGBUS handler for shared memory that a client has truncated, would overwrite
// malloc's data in front of that buffer.
void UseSignalStack();
// Same, for the `threads` OpenMP threads that compute with the calling thread, including itself.
void UseSignalStacks(int threads);

}  // namespace braid
