// Directories whose manifest says what is in them, so that damage is found before it is used.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/new_file.h"
#include "server/storage/manifest.h"

namespace braid {

// A file of `bytes`.
NewFile FileOf(std::string name, std::string bytes);

// Writes <parent>/<name> with `files` and the manifest, whole or not at all (staging.h), in place
// of what is there. Returns the manifest, with its files. RESOURCE_EXHAUSTED where the disk is
// full; what `write` returns if it fails; INVALID_ARGUMENT for a bad file name or state.
absl::StatusOr<Manifest> WriteSealedDirectory(const std::string& parent, const std::string& name,
                                              Manifest manifest, const std::vector<NewFile>& files);

// The manifest of a `kind`, after a look at which files are there, and how large. DATA_LOSS if
// something is missing or otherwise, FAILED_PRECONDITION if a later version of the server wrote it.
absl::StatusOr<Manifest> ReadManifest(const std::string& directory, absl::string_view kind);

// Replaces the manifest alone. The files are to be what it says.
absl::Status ReplaceManifest(const std::string& directory, const Manifest& manifest);

// Reads every file through. DATA_LOSS naming the one that has changed.
absl::Status CheckContents(const std::string& directory, const Manifest& manifest);

}  // namespace braid
