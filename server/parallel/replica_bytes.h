// Memory of a replica.
#pragma once

#include <cstdint>

#include "server/parallel/replica.h"

namespace braid {

// Returns the bytes of all parameters and buffers; shared storage counts once. Call it on the
// replica's worker, or before it has one.
int64_t BytesOf(const Replica& replica);

}  // namespace braid
