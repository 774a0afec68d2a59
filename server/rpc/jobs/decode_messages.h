// Conversion of braid.v1.Decode.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "braid/v1/decode.pb.h"
#include "server/decode/decode_spec.h"

namespace braid {

// Returns the specification of a message; nullopt if it has neither an image nor a text.
// INVALID_ARGUMENT names the field, starting with `field`.
absl::StatusOr<std::optional<DecodeSpec>> ReadDecode(const braid::v1::Decode& message,
                                                     const std::string& field);

}  // namespace braid
