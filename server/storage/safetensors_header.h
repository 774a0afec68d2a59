// The header of a safetensors file: JSON that says what lies where.
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
  // Of the bytes after the header.
  size_t begin = 0;
  size_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// INVALID_ARGUMENT for a name that comes twice or is "__metadata__", and for text that is no UTF-8.
absl::StatusOr<std::string> SafetensorsHeaderText(const SafetensorsHeader& header);

// Takes nothing on trust. The entries come in the order of their bytes, of which there are
// `data_bytes`, each belonging to one entry. DATA_LOSS saying what is wrong.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text, size_t data_bytes);

}  // namespace braid
