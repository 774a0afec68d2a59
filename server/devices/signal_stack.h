// Where the handlers of signals run on threads that compute.
#pragma once

namespace braid {

// Gives the calling thread memory for the handlers of its signals, unless it has some, until it
// ends. Kernels of matrix products point the stack register into a buffer of theirs: a handler that
// runs on "the stack", as that of shared memory which a client has cut off, writes what the
// processor has to keep in front of that buffer, over what malloc has there.
void UseSignalStack();
// The same for the `threads` OpenMP threads that compute with the calling one, which is among them.
void UseSignalStacks(int threads);

}  // namespace braid
