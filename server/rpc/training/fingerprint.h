// What tells a request sent again from another one with its sequence number.
#pragma once

#include "google/protobuf/message.h"
#include "server/training/trainer/operation.h"

namespace braid {

// A 128-bit hash (XXH3) over the message's type and all its fields, tensors' bytes without a copy.
// Equal for equal messages in every process of this build.
Fingerprint FingerprintOf(const google::protobuf::Message& request);

}  // namespace braid
