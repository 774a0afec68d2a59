// Limit of open file descriptors. Each connection takes one.
#pragma once

#include <cstdint>

namespace braid {

// Raises the soft limit RLIMIT_NOFILE of this process to the hard limit. Many systems set a soft
// limit of 1,024 for programs that use select(). Ignores errors.
void RaiseDescriptorLimit();

// Returns the current soft limit.
int64_t DescriptorLimit();

}  // namespace braid
