// Reads the elements of BYTES inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_service.pb.h"
#include "server/decode/decoder.h"

namespace braid {

// Returns the `count` elements in `data`: each is its length in 4 bytes, little-endian, and its
// bytes. They point into `data`. INVALID_ARGUMENT, naming `field`, if `data` has another number of
// elements or ends within one. name: of the input, for errors.
absl::StatusOr<std::vector<EncodedRow>> SplitBytes(absl::string_view data, int64_t count,
                                                   const std::string& field,
                                                   const std::string& name);

// Returns the `count` elements in `contents`, which they point into. INVALID_ARGUMENT, naming
// `field`, for another number of elements, or if a field other than bytes_contents is set.
absl::StatusOr<std::vector<EncodedRow>> ReadBytesContents(
    const inference::InferTensorContents& contents, int64_t count, const std::string& field,
    const std::string& name);

}  // namespace braid
