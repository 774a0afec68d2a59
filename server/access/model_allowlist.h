// Allowlist of repository files by SHA-256. Models are code, so this protects against changed
// files.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/access/reloaded_files.h"
#include "server/access/sha256.h"

namespace braid {

// Parses the output of `sha256sum` into hashes by path. Removes a leading "./" of paths.
// INVALID_ARGUMENT with `file`, line and the expected form.
absl::StatusOr<std::map<std::string, Sha256Digest>> ParseSha256Lines(const std::string& file,
                                                                     absl::string_view text);

// Thread-safe, except files(). Owned by the server.
class ModelAllowlist {
 public:
  // path: of the list, whose paths are relative to `repository`. INVALID_ARGUMENT if it cannot be
  // read or parsed.
  static absl::StatusOr<std::unique_ptr<ModelAllowlist>> Create(const std::string& path,
                                                                const std::string& repository);

  // Hashes `path`, a file of the repository. Blocks on the disk. FAILED_PRECONDITION unless the
  // list contains it with this hash.
  absl::Status Check(const std::string& path) const ABSL_LOCKS_EXCLUDED(mu_);
  // For a Reloader.
  ReloadedFiles* files() { return &files_; }

 private:
  ModelAllowlist(const std::string& path, std::string repository);
  absl::Status Apply(const ReloadedFiles::Contents& contents) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string path_;
  const std::string repository_;  // ends with a slash
  ReloadedFiles files_;
  mutable absl::Mutex mu_;
  std::map<std::string, Sha256Digest> hashes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
