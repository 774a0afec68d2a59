// Header of NumPy's .npy format, versions 1.0 to 3.0:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/data_type.h"

namespace braid {

// A header is no longer than this, or it is rejected.
inline constexpr size_t kMaxNpyHeader = 65'536;
// Length of the headers that FormatNpyHeader() returns.
inline constexpr size_t kNpyHeaderBytes = 128;

struct NpyHeader {
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  // Position of the elements in the file.
  size_t data_offset = 0;
};

// Parses the header at the beginning of `file`, which needs at most kMaxNpyHeader bytes.
// INVALID_ARGUMENT for arrays that are not C-ordered, little-endian numbers or booleans; DATA_LOSS
// if the header is damaged.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view file);

// Formats a header of exactly kNpyHeaderBytes bytes, so that it can be replaced when the number of
// rows is known. INVALID_ARGUMENT for BF16, which NumPy lacks, and for more dimensions than fit.
absl::StatusOr<std::string> FormatNpyHeader(DataType type, const std::vector<int64_t>& shape);

}  // namespace braid
