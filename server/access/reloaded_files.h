// Files that are read at the start, and again when they change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

struct ReloadedFile {
  std::string flag;  // that names it, which errors and the log do
  std::string path;
  bool secret = false;  // nobody but the server is to read it: the log warns where others may
};

// Thread-compatible.
class ReloadedFiles {
 public:
  using Contents = std::vector<std::string>;  // in the order of the files
  // Takes the contents, all at once, or says what is wrong with them, and with which flag, and
  // changes nothing.
  using Apply = std::function<absl::Status(const Contents& contents)>;

  ReloadedFiles(std::vector<ReloadedFile> files, Apply apply);

  // Reads and applies them. INVALID_ARGUMENT with the flag of a path that cannot be read, or what
  // Apply says.
  absl::Status Load();

  // Applies what differs from what was applied last, and has not changed since the look before:
  // somebody may be writing. Logs what was taken, and once what was wrong: then all stays as it is.
  void Look();

 private:
  absl::StatusOr<Contents> Read() const;
  absl::Status Take(const Contents& contents);
  // The flags of the files that differ from those taken last.
  std::string ChangedFlags(const Contents& contents) const;

  const std::vector<ReloadedFile> files_;
  const Apply apply_;
  // As at the look before, as they were judged last, and as they were taken last.
  absl::StatusOr<Contents> seen_;
  absl::StatusOr<Contents> judged_;
  Contents taken_;
};

}  // namespace braid
