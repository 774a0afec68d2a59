// How many file descriptors the process may have open: each connection takes one.
#pragma once

#include <cstdint>

namespace braid {

// Raises the limit of this process, RLIMIT_NOFILE, as far as it may raise it by itself. Many
// systems begin with 1024, for programs that use select(), and let those have more that ask. What
// cannot be raised stays as it is.
void RaiseDescriptorLimit();

// As it is now: descriptors are below it.
int64_t DescriptorLimit();

}  // namespace braid
