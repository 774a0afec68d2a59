// Rows as JSON objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
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
  // Requires at least one column. Of longer binary values, the first `max_binary_bytes` are
  // followed by their number: "/9j/4AAQ… (1234 bytes)".
  explicit JsonRows(const arrow::Schema& schema,
                    size_t max_binary_bytes = std::numeric_limits<size_t>::max());

  // Appends a row of a batch to `out`. UNIMPLEMENTED for a type that cannot be printed.
  absl::Status Append(const arrow::RecordBatch& batch, int64_t row, std::string* out) const;

 private:
  const size_t max_binary_bytes_;
  std::vector<std::string> keys_;  // text before each value: '{"first":', ',"second":', …
};

}  // namespace braid
