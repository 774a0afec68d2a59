// Files that are read at start, and again when they change.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

struct ReloadedFile {
  std::string flag;  // flag that sets the path, for errors and the log
  std::string path;
  bool secret = false;  // warns if other users may read the file
};

// Thread-compatible. After start, owned by the Reloader's thread.
class ReloadedFiles {
 public:
  using Contents = std::vector<std::string>;  // in the order of the files
  // Applies the contents of all files, or returns an error that names the flag and changes nothing.
  using Apply = std::function<absl::Status(const Contents& contents)>;

  ReloadedFiles(std::vector<ReloadedFile> files, Apply apply);

  // Reads and applies the files. INVALID_ARGUMENT with the flag of an unreadable file, or the error
  // of Apply.
  absl::Status Load();

  // Applies the files if they changed since they were last applied, and are stable since the
  // previous call (they may be being written). Logs each change, and each error once; after an
  // error the applied contents stay in effect.
  void Poll();

 private:
  absl::StatusOr<Contents> Read() const;
  absl::Status ApplyAll(const Contents& contents);
  // Flags of the files that differ from the applied ones.
  std::string ChangedFlags(const Contents& contents) const;

  const std::vector<ReloadedFile> files_;
  const Apply apply_;
  absl::StatusOr<Contents> last_read_;
  absl::StatusOr<Contents> last_tried_;  // applied or rejected
  Contents applied_;
};

// Polls files once per second on its own thread. Thread-safe; the destructor joins the thread.
class Reloader {
 public:
  // files: outlive it, and must not be used by others from now on.
  explicit Reloader(std::vector<ReloadedFiles*> files, absl::Duration interval = absl::Seconds(1));
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

 private:
  void Run(absl::Duration interval) ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<ReloadedFiles*> files_;
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last member: joined first.
};

}  // namespace braid
