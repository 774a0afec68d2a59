// The server's certificate and key, and the authorities whose clients it believes.
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

// In PEM.
struct TlsMaterial {
  std::string certificates;  // the server's own first, then those between it and the root
  std::string key;
  std::string client_ca;  // empty: clients show no certificate
};

// INVALID_ARGUMENT with the flag of what is no certificate or key, does not belong together, or is
// not valid at `now`.
absl::Status CheckTlsMaterial(const TlsMaterial& material, absl::Time now);

// Thread-safe, but for files().
class TlsFiles {
 public:
  struct Paths {
    std::string certificates;
    std::string key;
    std::string client_ca;  // empty: none
  };

  // INVALID_ARGUMENT with the flag and the path of what is wrong.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Create(const Paths& paths);

  // Another object whenever the files have changed.
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
