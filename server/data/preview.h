// First rows of a data source, for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data/data_source.h"

namespace braid {

// Returns up to `max_rows` rows as JSON objects (json_rows.h), fewer at the end of the data and
// before the row with which they would exceed `max_bytes`, but at least one. Shows the first 48
// bytes of a binary value. `columns` as in ScanOptions. Requires max_rows >= 1. Blocks on the disk.
// Errors as RowScan::Next(); RESOURCE_EXHAUSTED if the first row exceeds `max_bytes`.
absl::StatusOr<std::vector<std::string>> PreviewRows(DataSource* source,
                                                     const std::vector<std::string>& columns,
                                                     int64_t max_rows, size_t max_bytes);

}  // namespace braid
