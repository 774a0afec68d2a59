// Decoder of JPEG, PNG and WebP files.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/decode/decode_spec.h"
#include "server/decode/decoder.h"

namespace braid {

// Makes the decoder of `spec`. INVALID_ARGUMENT names the field, starting with `field`.
absl::StatusOr<std::shared_ptr<const Decoder>> MakeImageDecoder(const ImageSpec& spec,
                                                                absl::string_view field);

}  // namespace braid
