// Rows of tables, packed into files for random access.
//
// Tables are read in order; training needs their rows in any order. So the columns that a job needs
// are packed once into a file of rows with a fixed number of bytes, which is memory-mapped: the
// operating system's page cache keeps what fits into memory.
//
//   <key>.rows:  8 bytes    length of the header, little-endian
//                header     JSON: {"fields": [{"type": "FP32", "shape": [784]}, {"encoded": true}]}
//                values     bytes of encoded fields, one after the other
//                rows       fields of a row one after the other, without gaps; of an encoded field
//                           the EncodedValues::ByteRange
//                8 bytes    length of `values`; only with encoded fields
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/data/data_source.h"
#include "server/data/row_store.h"

namespace braid {

// Called while a table is packed, between record batches, with the number of rows so far. An error
// ends the packing and is returned.
using PackProgress = std::function<absl::Status(int64_t rows)>;

// Directory of packed tables. Removes those that were not used for the longest time, but none in
// use. Thread-safe. One process may use a directory at a time.
class RowCache {
 public:
  // Creates the directory if necessary and removes what an interrupted run left. `max_bytes` limits
  // the sum of the files' sizes.
  static absl::StatusOr<std::unique_ptr<RowCache>> Open(std::string directory, int64_t max_bytes);

  // Returns random access to columns of the source: packs the rows of a table, unless it did so
  // before, and maps arrays where they are, unless a tensor joins several. Packs encoded values as
  // they are, and of values that are files their paths. Blocks until a table is
  // packed, by this call or by another one that needs the same rows. Different tables are packed at
  // the same time. INVALID_ARGUMENT names the column and row of a null, of a value that cannot be
  // converted and of lists with different lengths; RESOURCE_EXHAUSTED if the rows exceed the limit
  // or the disk is full; errors as RowScan::Next().
  absl::StatusOr<std::shared_ptr<const RowStore>> Rows(DataSource* source,
                                                       const std::vector<TensorColumn>& tensors,
                                                       const PackProgress& progress)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  RowCache(std::string directory, int64_t max_bytes)
      : directory_(std::move(directory)), max_bytes_(max_bytes) {}

  // Opens the packed rows. Returns null if there are none; the caller then packs them, and others
  // wait for it.
  absl::StatusOr<std::shared_ptr<const RowStore>> OpenOrClaim(
      const std::vector<TensorColumn>& tensors, const std::string& path,
      const PackProgress& progress) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens a file and notes that it is in use.
  absl::StatusOr<std::shared_ptr<const RowStore>> Use(const std::vector<TensorColumn>& tensors,
                                                      const std::string& path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes the file durably. Returns its size.
  absl::StatusOr<int64_t> Pack(DataSource* source, const std::vector<TensorColumn>& tensors,
                               const std::string& path, const PackProgress& progress) const;
  // Removes files that are not in use, the least recently used first, until others have at most
  // `limit` bytes together. Keeps `path`.
  absl::Status Evict(const std::string& path, int64_t limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  bool InUse(const std::string& path) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const std::string directory_;
  const int64_t max_bytes_;

  absl::Mutex mu_;
  // Paths of the files that are being packed, and their rows so far.
  std::map<std::string, int64_t> packing_ ABSL_GUARDED_BY(mu_);
  // Stores that were opened, by path. Those that expired do not use the file any more.
  std::map<std::string, std::vector<std::weak_ptr<const RowStore>>> in_use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
