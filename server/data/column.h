// Columns of data sources and their types as tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "arrow/type_fwd.h"
#include "server/base/data_type.h"
#include "server/base/row_type.h"

namespace braid {

struct Column {
  std::string name;
  // Arrow's name, for example "int64" or "fixed_size_list<item: float>[32]".
  std::string arrow_type;
  // nullopt if rows are not tensors, for example strings and dates.
  std::optional<RowType> row;
  // Rows are bytes that a decoder can read, such as images and texts.
  bool bytes = false;
  // Rows are lists of numbers of varying length, which a decoder can pad.
  bool lists = false;
};

// Describes a field of an Arrow schema: numbers, booleans, fixed-size lists of them and Arrow's
// fixed-shape tensors are tensors; a list is a vector of unknown length.
Column ColumnOf(const arrow::Field& field);

// Returns the field whose rows are tensors of this type: a number or nested fixed-size lists. BF16,
// which Arrow lacks, is two bytes that the field's metadata marks. INVALID_ARGUMENT if a dimension
// is unknown or exceeds Arrow's limit, 2^31 - 1.
absl::StatusOr<std::shared_ptr<arrow::Field>> FieldOf(const std::string& name, const RowType& row);

// Returns the bytes of a row; nullopt if a dimension is unknown or the product overflows.
std::optional<size_t> RowBytes(const RowType& row);

// Returns the bytes of a row, or an estimate for strings, bytes, lists and other columns without a
// fixed size.
size_t EstimatedRowBytes(const Column& column);

// Says on one line what the first difference of two schemas is, without their metadata: "column 'x'
// has type int32 (expected int64, as in <like>)". Empty if they are equal.
std::string SchemaDifference(const arrow::Schema& schema, const arrow::Schema& expected,
                             absl::string_view like);

// Formats as "FP32 [28, 28]", with "?" for unknown dimensions.
std::string RowTypeString(const RowType& row);

}  // namespace braid
