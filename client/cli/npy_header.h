// The header of NumPy's .npy format, versions 1.0 and 2.0: C order, little-endian, bool, integers
// and floating point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace braid::cli {

struct NpyHeader {
  // As on the wire: "FP32" for "<f4".
  std::string datatype;
  std::vector<int64_t> shape;
  // Where the elements begin in the file.
  size_t data_offset = 0;
};

// Reads the header at the beginning of `file` (what follows it is not looked at). INVALID_ARGUMENT,
// saying what is wrong and what to do about it, for anything else than the above.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view file);

// A file's beginning, padded to a multiple of 64 bytes. INVALID_ARGUMENT for a datatype that NumPy
// lacks (BF16).
absl::StatusOr<std::string> FormatNpyHeader(absl::string_view datatype,
                                            absl::Span<const int64_t> shape);

}  // namespace braid::cli
