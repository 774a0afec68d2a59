// Rows as JSON objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "arrow/type_fwd.h"

namespace braid {

// Formats rows of one schema, for example as {"id":1,"x":[0.5,2],"name":"a"}. Numbers are as short
// as possible without losing precision. Nulls, NaN and infinite numbers become null. Structs become
// objects, maps lists of {"key", "value"}, bytes base64; dates and other types that JSON lacks
// become strings. Immutable. Thread-safe.
class JsonRows {
 public:
  // Requires at least one column.
  explicit JsonRows(const arrow::Schema& schema);

  // Appends a row of a batch to `out`. UNIMPLEMENTED for a type that cannot be printed.
  absl::Status Append(const arrow::RecordBatch& batch, int64_t row, std::string* out) const;

 private:
  std::vector<std::string> keys_;  // text before each value: '{"first":', ',"second":', …
};

}  // namespace braid
