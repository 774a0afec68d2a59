// Tables in Parquet, Arrow IPC and CSV files as data sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/data/data_file.h"
#include "server/data/data_source.h"

namespace braid {

// Returns true if `head`, the first bytes of a file, and the file's name are those of a table.
bool IsTableFile(absl::string_view path, absl::string_view head);

// Opens a table. The format follows from the contents (Parquet, Arrow IPC files), else from the
// suffix
// ".csv". Parquet and CSV are streamed; Arrow IPC files are memory-mapped. The first row of a CSV
// file has the column names; types are inferred from its first MiB.
absl::StatusOr<std::unique_ptr<DataSource>> OpenTableSource(std::shared_ptr<const DataFile> file);

// Returns the tables one after the other as one source. INVALID_ARGUMENT if a schema differs from
// that of the first table. Requires at least one table.
absl::StatusOr<std::unique_ptr<DataSource>> ConcatenateSources(
    std::vector<std::unique_ptr<DataSource>> parts, const std::vector<std::string>& names);

}  // namespace braid
