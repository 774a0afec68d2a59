// Reader of the small files, such as images, that rows of a dataset name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/remote/object_copies.h"

namespace braid {

// Reads files below the data roots. Keeps no file open. Immutable. Thread-safe.
class FileReader {
 public:
  // Size of the largest file that Read() accepts.
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;

  // Relative paths start at `directory`. Files outside of `roots` are not read. `copy`: the copy of
  // objects in S3 to which the directory belongs; null: none.
  FileReader(std::string directory, std::vector<std::string> roots,
             std::shared_ptr<const CopiedSet> copy = nullptr)
      : directory_(std::move(directory)), roots_(std::move(roots)), copy_(std::move(copy)) {}

  // Reads a file. NOT_FOUND if it does not exist; INVALID_ARGUMENT if it leaves the roots, is not a
  // regular file or is too large. Errors name the path.
  absl::StatusOr<std::string> Read(absl::string_view path) const;

 private:
  absl::StatusOr<std::string> ReadLocal(const std::string& path) const;

  const std::string directory_;
  const std::vector<std::string> roots_;
  const std::shared_ptr<const CopiedSet> copy_;
};

}  // namespace braid
