// Random access to the rows of a dataset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/base/host_tensor.h"
#include "server/data/column.h"
#include "server/data/data_file.h"
#include "server/data/data_source.h"
#include "server/data/encoded/decode_rows.h"
#include "server/data/encoded/encoded_values.h"
#include "server/data/tensor_column.h"
#include "server/decode/decoder.h"

namespace braid {

// Rows in mapped files, and encoded values that become rows. Thread-safe.
class RowStore {
 public:
  // One tensor of each row; with a decoder, all tensors that it returns.
  struct Field {
    TensorColumn tensor;
    RowType stored;
    // Row r begins at first + r * stride.
    const char* first = nullptr;
    size_t stride = 0;
    std::shared_ptr<const MappedRange> range;
    // Set, instead of the members after `tensor`, if `tensor` has a decoder.
    std::shared_ptr<const EncodedValues> encoded = nullptr;
  };

  // Requires fields with known shapes within their ranges.
  RowStore(int64_t rows, std::vector<Field> fields);

  int64_t rows() const { return rows_; }
  // Bytes of one row of all tensors that Gather() returns; an estimate if a shape is unknown.
  size_t row_bytes() const { return row_bytes_; }
  // Names and types of the tensors that Gather() returns, in their order.
  const std::vector<Decoder::Output>& tensors() const { return tensors_; }
  // True if rows are decoded, which takes long.
  bool decodes() const { return !encoded_.empty(); }

  // True if the shape of a row depends on the rows that are gathered with it, such as that of a
  // text that is padded to the longest one.
  bool pads() const { return !padded_.empty(); }
  // Returns the bytes of the values of a row that are padded. 0 for values in files of their own.
  int64_t PaddedLength(int64_t row) const;

  // Bytes of all rows in the files.
  size_t stored_bytes() const;
  // Tells the system that rows are read in random order, so that it reads no rows ahead. Only
  // useful if the files do not fit into memory.
  void ExpectRandomAccess() const;

  // Copies the rows into the tensors of each field, in their order, converted and decoded as the
  // fields ask. Blocks on the disk. ABORTED if a file changed; INVALID_ARGUMENT names the row of a
  // value that cannot be converted or decoded. With `skipped`, rows that cannot be decoded are left
  // out and appended to it instead. Returns no tensors if no rows are left.
  absl::StatusOr<std::vector<HostTensor>> Gather(absl::Span<const int64_t> rows,
                                                 const DecodeOptions& options = {},
                                                 std::vector<SkippedRow>* skipped = nullptr) const;

 private:
  absl::StatusOr<HostTensor> GatherField(const Field& field, absl::Span<const int64_t> rows) const;

  const int64_t rows_;
  const std::vector<Field> fields_;
  std::vector<EncodedColumn> encoded_;  // of the fields with decoders
  std::vector<const EncodedValues*> padded_;
  std::vector<Decoder::Output> tensors_;
  size_t row_bytes_ = 0;
};

// Makes the arrays of a source a row store. Requires source.arrays() and one column per tensor.
absl::StatusOr<std::shared_ptr<const RowStore>> MapRows(const DataSource& source,
                                                        const std::vector<TensorColumn>& tensors);

}  // namespace braid
