// Tables and arrays as a sequence of rows with named columns.
//
//   BRAID_ASSIGN_OR_RETURN(const auto source, OpenDataSource("train.parquet", directories,
//   "data.path")); BRAID_ASSIGN_OR_RETURN(const auto scan, source->Scan({.columns = {"image",
//   "label"}})); while (true) {
//     BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::RecordBatch> batch, scan->Next());
//     if (batch == nullptr) break;
//     …
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "arrow/type_fwd.h"
#include "server/data/column.h"
#include "server/data/stored_array.h"

namespace braid {

struct CopiedSet;

// Sequential reader of a source's rows. Thread-compatible.
class RowScan {
 public:
  virtual ~RowScan() = default;

  // Blocks until the next rows are read. Returns null after the last row. ABORTED if a file changed
  // since the source was opened, DATA_LOSS if a file is damaged.
  virtual absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() = 0;
};

struct ScanOptions {
  // Columns to read, in this order. Empty: all.
  std::vector<std::string> columns = {};
  int64_t first_row = 0;
  // Limit on the rows of one batch. 0: as many as take about 16 MiB. Batches may be smaller.
  int64_t batch_rows = 0;
};

// Thread-safe.
class DataSource {
 public:
  virtual ~DataSource() = default;

  // Format for people: "Parquet", "images", …
  virtual absl::string_view format() const = 0;
  // In the order of the file. Names are unique.
  virtual const std::vector<Column>& columns() const = 0;
  virtual const std::shared_ptr<arrow::Schema>& schema() const = 0;
  // Text that differs if the files or their contents differ.
  virtual std::string Identity() const = 0;
  // Returns the number of rows. Reads a CSV file to its end the first time.
  virtual absl::StatusOr<int64_t> Rows() = 0;
  // Returns the number of rows if it is known without reading the rows.
  virtual std::optional<int64_t> KnownRows() const = 0;

  // Starts to read at a row. INVALID_ARGUMENT for an unknown column. A first row beyond the end
  // gives no rows. Reading a CSV file from a later row parses the rows before it.
  virtual absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) = 0;

  // Returns the column with the paths of the files whose bytes are in `column`, so that a reader
  // may choose when to read them; empty if the source itself has the bytes.
  virtual std::string PathColumn(absl::string_view /*column*/) const { return ""; }

  // Returns the local copy if the data is in S3; else null.
  virtual std::shared_ptr<const CopiedSet> copy() const { return nullptr; }

  // Returns the arrays if the source consists of them, which allows random access; else null.
  virtual const std::vector<StoredArray>* arrays() const { return nullptr; }

  // Returns true if all reads are of the files that were opened. False: each file is opened when
  // its rows are read, so a job must check that Identity() of the path is the same.
  virtual bool KeepsFiles() const { return true; }
};

// Returns the indices of `names` in the source's columns; all of them if `names` is empty.
// INVALID_ARGUMENT for an unknown or duplicate name lists the columns.
absl::StatusOr<std::vector<int>> ColumnIndices(const std::vector<Column>& columns,
                                               const std::vector<std::string>& names);

// Returns the limit on the rows of a batch for columns with these indices.
int64_t BatchRows(const ScanOptions& options, const std::vector<Column>& columns,
                  const std::vector<int>& indices);

// Describes a schema's columns. INVALID_ARGUMENT if two have the same name.
absl::StatusOr<std::vector<Column>> ColumnsOf(const arrow::Schema& schema);

}  // namespace braid
