// Directories with a manifest of their files and checksums, so that damage is detected before use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/new_file.h"
#include "server/storage/manifest.h"
#include "server/storage/shared_files.h"

namespace braid {

// Returns a file with the contents `bytes`.
NewFile FileOf(std::string name, std::string bytes);

// Name in a directory of a file that others contain, too.
struct NamedSharedFile {
  std::string name;
  std::shared_ptr<const SharedFile> file;
};

// Writes or replaces <parent>/<name> with `files`, links to `shared` and the manifest, atomically
// (staging.h). Returns the manifest with its files. RESOURCE_EXHAUSTED if the disk is full; the
// error of a file's `write`; INVALID_ARGUMENT for an invalid file name or state.
absl::StatusOr<Manifest> WriteSealedDirectory(const std::string& parent, const std::string& name,
                                              Manifest manifest, const std::vector<NewFile>& files,
                                              const std::vector<NamedSharedFile>& shared = {});

// Reads a manifest of `kind` and checks that the files exist with the right sizes. DATA_LOSS if
// they do not, FAILED_PRECONDITION if a later version of the server wrote it.
absl::StatusOr<Manifest> ReadManifest(const std::string& directory, absl::string_view kind);

// Replaces only the manifest, which must match the files.
absl::Status ReplaceManifest(const std::string& directory, const Manifest& manifest);

// Verifies the checksums of all files. DATA_LOSS names a file that has changed.
absl::Status CheckContents(const std::string& directory, const Manifest& manifest);

}  // namespace braid
