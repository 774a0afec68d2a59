// Manifest of a sealed directory, manifest.json.
//
//   {
//     "created": "2026-01-31T12:00:00.5+00:00",
//     "files": {"model.safetensors": {"bytes": 1048576, "checksum": "<XXH3, 128 bits>"}},
//     "format_version": 1,
//     "kind": "checkpoint",
//     "numbers": {"step": 120},
//     "state": {},
//     "checksum": "<of the text before this line>"
//   }
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/storage/stored_file.h"

namespace braid {

inline constexpr char kManifestName[] = "manifest.json";
// Version that is written, and newest version that can be read.
inline constexpr int64_t kManifestVersion = 2;

struct Manifest {
  std::string kind;
  absl::Time created;
  std::map<std::string, int64_t> numbers;
  // JSON object of the writer. JSON has no infinite numbers or NaN.
  std::string state = "{}";
  std::map<std::string, StoredFile> files;
};

// Formats a manifest. INVALID_ARGUMENT if `state` is not a JSON object.
absl::StatusOr<std::string> ManifestText(const Manifest& manifest);

// Parses a manifest. DATA_LOSS if `text` is damaged, FAILED_PRECONDITION if a later version of the
// server wrote it.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace braid
