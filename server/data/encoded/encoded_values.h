// Random access to the encoded values of a column, such as images.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/data/data_file.h"
#include "server/data/encoded/file_reader.h"

namespace braid {

// Reads the values of a column from a mapped file, which holds their bytes, or the paths of files
// with their bytes. Thread-safe.
class EncodedValues {
 public:
  // Byte range of a value in a file of packed rows. Little-endian, as the machine.
  struct ByteRange {
    static constexpr uint64_t kNull = ~uint64_t{0};  // length of a null

    uint64_t begin = 0;  // from the start of `values`
    uint64_t length = 0;
  };

  // The ByteRange of row r is at first + r * stride in `byte_ranges`. files: reads the paths in
  // `values`; null if `values` has the bytes themselves.
  EncodedValues(std::shared_ptr<const MappedRange> byte_ranges, size_t first, size_t stride,
                std::shared_ptr<const MappedRange> values, std::shared_ptr<const FileReader> files)
      : byte_ranges_(std::move(byte_ranges)),
        first_(first),
        stride_(stride),
        values_(std::move(values)),
        files_(std::move(files)) {}

  // Returns the bytes of a row, which stay valid as long as the object and `*storage`. Blocks on
  // the disk. INVALID_ARGUMENT for a null, errors of FileReader, DATA_LOSS for a damaged file.
  absl::StatusOr<absl::string_view> Read(int64_t row, std::string* storage) const;
  // Returns " (file 'cat/1.jpg')" for a row whose bytes are in a file of their own; else "".
  std::string Describe(int64_t row) const;
  // Returns the size of a value in bytes; 0 for null; nullopt if the value is in a separate file.
  std::optional<int64_t> Length(int64_t row) const;
  // ABORTED if the mapped file changed.
  absl::Status Check() const;
  // Tells the system that rows are read in random order.
  void ExpectRandomAccess() const { values_->ExpectRandomAccess(); }
  // Bytes of all values in the mapped file.
  size_t bytes() const { return values_->bytes(); }

 private:
  ByteRange ByteRangeOf(int64_t row) const;
  // Returns the value in the mapped file.
  absl::StatusOr<absl::string_view> ValueOf(int64_t row) const;

  const std::shared_ptr<const MappedRange> byte_ranges_;
  const size_t first_;
  const size_t stride_;
  const std::shared_ptr<const MappedRange> values_;
  const std::shared_ptr<const FileReader> files_;
};

// Returns " (file 'cat/1.jpg')", with an excerpt of the path.
std::string InFile(absl::string_view path);

}  // namespace braid
