// How large compressed messages may get when gRPC unpacks them: gRPC 1.51 looks only afterwards.
#pragma once

#include <cstddef>

namespace braid {

// From now on a message that gets larger than `message_bytes`, or with which those that are being
// unpacked get larger than `all_bytes` together, is refused as one that cannot be unpacked. Of all
// that the process unpacks with zlib.
void LimitUnpacking(size_t message_bytes, size_t all_bytes);

}  // namespace braid
