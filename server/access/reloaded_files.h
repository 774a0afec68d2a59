// Files that are read at the start, and again when they change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// Thread-compatible.
class ReloadedFiles {
 public:
  using Contents = std::vector<std::string>;  // in the order of the paths
  // Takes the contents, all at once, or says what is wrong with them and changes nothing.
  using Apply = std::function<absl::Status(const Contents& contents)>;

  // `what`: what the log calls them.
  ReloadedFiles(std::string what, std::vector<std::string> paths, Apply apply);

  // Reads and applies them. INVALID_ARGUMENT with a path that cannot be read, or what Apply says.
  absl::Status Load();

  // Applies what differs from what was applied last, and has not changed since the look before:
  // somebody may be writing. Logs what was taken, and once what was wrong: then all stays as it is.
  void Look();

 private:
  absl::StatusOr<Contents> Read() const;
  void Take(const absl::StatusOr<Contents>& contents);

  const std::string what_;
  const std::vector<std::string> paths_;
  const Apply apply_;
  // As at the look before, and as they were judged last.
  absl::StatusOr<Contents> seen_;
  absl::StatusOr<Contents> judged_;
};

}  // namespace braid
