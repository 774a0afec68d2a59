// The JSON of a safetensors header, as it comes.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/data_type.h"
#include "server/storage/safetensors_header.h"

namespace braid {

inline constexpr char kSafetensorsMetadata[] = "__metadata__";

// "F32".
absl::string_view SafetensorsTypeName(DataType type);

// Entries in the order of the text: each field there once and of its type, no name twice, and
// nothing else. Where the bytes lie is not looked at. DATA_LOSS saying what is wrong.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsJson(absl::string_view text);

}  // namespace braid
