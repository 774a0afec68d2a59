// Fingerprint that distinguishes a retry from a different request with the same sequence number.
#pragma once

#include "google/protobuf/message.h"
#include "server/training/trainer/operation.h"

namespace braid {

// Returns a 128-bit hash (XXH3) of the message's type and all fields, without copying tensors.
// Equal messages have equal hashes in all processes of this build.
Fingerprint FingerprintOf(const google::protobuf::Message& request);

}  // namespace braid
