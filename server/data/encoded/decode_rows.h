// Decoding of rows, some of which may be unreadable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/base/host_tensor.h"
#include "server/decode/decoder.h"

namespace braid {

// Row of a dataset that cannot be decoded. The error names its column, number and file.
struct SkippedRow {
  int64_t row = 0;
  absl::Status error;
};

// A column of encoded bytes, and the tensors that it becomes.
struct EncodedColumn {
  std::string name;    // of the column
  std::string tensor;  // name of the decoder's own tensor
  const Decoder* decoder = nullptr;
  // Returns the bytes of a row; may keep them in `storage`.
  std::function<absl::StatusOr<absl::string_view>(int64_t row, std::string* storage)> read;
  // Returns " (file '…')" for errors, or "".
  std::function<std::string(int64_t row)> describe;
};

// Decodes the columns of `rows`. Returns the tensors of each column, in the order of its decoder's
// outputs, with dim 0 = rows. Rows with a value that cannot be read or decoded are removed from
// `*rows`, left out of all tensors and appended to `*skipped`. If `skipped` is null, returns the
// error of the first such row. Always returns errors that do not concern one row, such as
// RESOURCE_EXHAUSTED. options.max_bytes is for each column. If no rows are left, a column may have
// no tensors.
absl::StatusOr<std::vector<std::vector<HostTensor>>> DecodeColumns(
    absl::Span<const EncodedColumn> columns, const DecodeOptions& options,
    std::vector<int64_t>* rows, std::vector<SkippedRow>* skipped);

// Returns the names and row types of a column's tensors.
std::vector<Decoder::Output> TensorsOf(const Decoder& decoder, const std::string& tensor);

// Returns the indices of `kept` in `all`. Both have the same order.
std::vector<int64_t> IndicesOf(absl::Span<const int64_t> kept, absl::Span<const int64_t> all);

// Returns rows of a tensor, copied. `indices`: of dim 0.
absl::StatusOr<HostTensor> SelectRows(const HostTensor& tensor, absl::Span<const int64_t> indices);

}  // namespace braid
