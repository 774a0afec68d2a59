// Header of a safetensors file: JSON that lists the tensors.
//
//   {"__metadata__": {"format": "pt"},
//    "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/data_type.h"

namespace braid {

struct SafetensorsEntry {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  // Range of its bytes in the data.
  size_t begin = 0;
  size_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// Formats a header. INVALID_ARGUMENT for a duplicate name, for the name "__metadata__", and for
// invalid UTF-8.
absl::StatusOr<std::string> SafetensorsHeaderText(const SafetensorsHeader& header);

// Parses and validates a header. The entries must cover the `data_bytes` bytes of data without gaps
// and are returned in the order of their bytes. DATA_LOSS if the header is invalid.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text, size_t data_bytes);

}  // namespace braid
