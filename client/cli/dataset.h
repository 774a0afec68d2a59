// The data of `braid train` and `braid evaluate`: .npy files of as many rows, and batches cut out
// of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/npy.h"
#include "client/cpp/operation.h"

namespace braid::cli {

// "NAME=FILE" of the command line.
struct NamedFile {
  std::string name;
  std::string path;
};

// INVALID_ARGUMENT if there is no '=', or nothing on one side of it.
absl::StatusOr<NamedFile> ParseNamedFile(const std::string& argument);
// As above; INVALID_ARGUMENT too if a name comes twice.
absl::StatusOr<std::vector<NamedFile>> ParseNamedFiles(const std::vector<std::string>& arguments);

// Thread-compatible.
class Dataset {
 public:
  // INVALID_ARGUMENT if a file has no rows, or not as many as the others; else as NpyFile::Open.
  static absl::StatusOr<Dataset> Open(const std::vector<NamedFile>& inputs,
                                      const std::vector<NamedFile>& targets);

  int64_t rows() const { return rows_; }

  // The rows of these indices, in this order. Each index must be in [0, rows()).
  client::Batch Gather(absl::Span<const int64_t> indices) const;

 private:
  struct Column {
    std::string name;
    NpyFile file;
  };

  Dataset() = default;
  absl::Status Add(const NamedFile& named);

  // The inputs, then the targets.
  std::vector<Column> columns_;
  size_t inputs_ = 0;
  int64_t rows_ = 0;
};

// The order in which an epoch visits the rows: 0 … rows - 1, or a permutation of it that depends on
// nothing but `rows`, `seed` and `epoch`.
std::vector<int64_t> EpochOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch);

}  // namespace braid::cli
