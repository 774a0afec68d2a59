// Conversion between Arrow's arrays and tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "arrow/type_fwd.h"
#include "server/base/host_tensor.h"
#include "server/data/column.h"

namespace braid {

// Allocates `bytes` bytes, aligned to 64 bytes. RESOURCE_EXHAUSTED without memory.
absl::StatusOr<std::shared_ptr<char>> AllocateHost(size_t bytes);

// Returns the rows of a column as a tensor that is named as the column, with the rows in dim 0.
// Shares the array's memory, except for booleans, which Arrow packs into bits. `first_row` is the
// row of the source where the array begins, for messages. INVALID_ARGUMENT names the column and row
// of a null, of a list whose length differs and of a column that is not a tensor.
absl::StatusOr<HostTensor> ToTensor(const arrow::Field& field,
                                    const std::shared_ptr<arrow::Array>& array, int64_t first_row);

// Returns the rows of a tensor of at least one dimension as a column. Shares the tensor's memory,
// except for booleans and elements that are not aligned.
absl::StatusOr<std::shared_ptr<arrow::Array>> ToArray(const HostTensor& tensor);

// Returns the type of a row of the tensor.
RowType RowTypeOf(const HostTensor& tensor);

// Returns rows [begin, end) of a tensor. Shares its memory.
HostTensor SliceRows(const HostTensor& tensor, int64_t begin, int64_t end);

// Converts the elements (convert_elements.h). `first_row` is as for ToTensor(). INVALID_ARGUMENT
// names the column, the row and the value that has no counterpart.
absl::StatusOr<HostTensor> ConvertTensor(const HostTensor& tensor, DataType type, double scale,
                                         int64_t first_row);

// Returns the INVALID_ARGUMENT error for the first value of a row that ConvertElements() refuses.
absl::Status InvalidRowValue(absl::string_view column, const RowType& stored, const void* row,
                             int64_t row_number, DataType type);

}  // namespace braid
