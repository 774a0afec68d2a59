// The server's TLS certificate and key, and the authorities for client certificates.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/access/reloaded_files.h"

namespace braid {

// PEM contents.
struct TlsMaterial {
  std::string certificates;  // the server's own first, then intermediates
  std::string key;
  std::string client_ca;  // empty: clients are not verified
};

// INVALID_ARGUMENT, naming the flag, if a certificate or key is malformed, the key does not match,
// or a certificate is not valid at `now`.
absl::Status CheckTlsMaterial(const TlsMaterial& material, absl::Time now);

// Thread-safe, except files(). Owned by the server.
class TlsFiles {
 public:
  struct Paths {
    std::string certificates;
    std::string key;
    std::string client_ca;  // empty: none
  };

  // Reads and checks the files. INVALID_ARGUMENT with flag and path of an error.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Create(const Paths& paths);

  // The latest valid contents; a different object after each change.
  std::shared_ptr<const TlsMaterial> current() const ABSL_LOCKS_EXCLUDED(mu_);
  bool verifies_clients() const { return verifies_clients_; }
  // For a Reloader.
  ReloadedFiles* files() { return &files_; }

 private:
  explicit TlsFiles(const Paths& paths);
  absl::Status Apply(const ReloadedFiles::Contents& contents) ABSL_LOCKS_EXCLUDED(mu_);

  const bool verifies_clients_;
  ReloadedFiles files_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const TlsMaterial> current_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
