// Identifies clients by token or certificate.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/access/identity_table.h"
#include "server/access/reloaded_files.h"
#include "server/access/sha256.h"

namespace braid {

// Credentials that a client sent.
struct Credentials {
  std::optional<Sha256Digest> token;  // SHA-256 of the token
  // Names in its verified certificate: subject alternative names, or the common name without them.
  std::vector<std::string> names;
};

// Thread-safe, except files(). Owned by the server.
class AccessControl {
 public:
  // At least one is set.
  struct Paths {
    std::string tokens;
    std::string certificates;
  };

  // Reads the files. INVALID_ARGUMENT with flag, file and line of an error.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Create(const Paths& paths);

  // Returns the identity of a client; null if unknown. A token takes precedence: a client with an
  // unknown token is rejected even if its certificate is known.
  std::shared_ptr<const Identity> Identify(const Credentials& credentials) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Increases whenever the identities change.
  int64_t generation() const { return generation_; }

  bool takes_tokens() const { return !paths_.tokens.empty(); }
  bool takes_certificates() const { return !paths_.certificates.empty(); }
  // For a Reloader.
  ReloadedFiles* files() { return &files_; }

 private:
  explicit AccessControl(const Paths& paths);
  absl::Status Apply(const ReloadedFiles::Contents& contents) ABSL_LOCKS_EXCLUDED(mu_);

  const Paths paths_;
  ReloadedFiles files_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const IdentityTable> table_ ABSL_GUARDED_BY(mu_);
  // Incremented after the table changes, so that a reader of a new number sees the new table.
  std::atomic<int64_t> generation_{0};
};

}  // namespace braid
