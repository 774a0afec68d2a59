// Who a client is, by the token or the certificate that it shows.
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

// What a client has shown.
struct Credentials {
  std::optional<Sha256Digest> token;  // its hash
  // Of its certificate, which has been verified: the subject's alternative names, or the common
  // name where there is none.
  std::vector<std::string> names;
};

// Thread-safe, but for files().
class AccessControl {
 public:
  // Empty: there is none. One at least is there.
  struct Paths {
    std::string tokens;
    std::string certificates;
  };

  // INVALID_ARGUMENT with the flag, file and line of what is wrong.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Create(const Paths& paths);

  // A token decides, where there are any: a client that shows a bad one is nobody, whatever its
  // certificate. null: nobody.
  std::shared_ptr<const Identity> Identify(const Credentials& credentials) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Another number whenever the identities have changed.
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
  // Goes up after the table has changed: who sees it go up sees the table.
  std::atomic<int64_t> generation_{0};
};

}  // namespace braid
