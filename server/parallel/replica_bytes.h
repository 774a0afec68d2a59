// The memory of a replica.
#pragma once

#include <cstdint>

#include "server/parallel/replica.h"

namespace braid {

// What the parameters and buffers of `replica` take, each memory once. By its worker, or before it
// has one.
int64_t BytesOf(const Replica& replica);

}  // namespace braid
