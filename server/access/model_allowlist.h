// The files of the repository that may be loaded, by their hashes: models are code.
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

// Hashes by path. Reads lines as `sha256sum` prints them: 64 hexadecimal digits, two spaces, path;
// a "./" before the path is as good as none. INVALID_ARGUMENT with `file`, the line, and what would
// be right.
absl::StatusOr<std::map<std::string, Sha256Digest>> ParseSha256Lines(const std::string& file,
                                                                     absl::string_view text);

// Thread-safe, but for files().
class ModelAllowlist {
 public:
  // `path`: of the list. Paths in it are relative to `repository`.
  static absl::StatusOr<std::unique_ptr<ModelAllowlist>> Create(const std::string& path,
                                                                const std::string& repository);

  // Reads `path`, a file of the repository. FAILED_PRECONDITION if it is not in the list with the
  // hash that it has now.
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
