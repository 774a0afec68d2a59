#include "server/data/preview.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "arrow/record_batch.h"
#include "server/base/status.h"
#include "server/data/output/json_rows.h"

namespace braid {

namespace {

// Bytes of a binary value, such as an image, that are shown.
constexpr size_t kMaxShownBytes = 48;

}  // namespace

absl::StatusOr<std::vector<std::string>> PreviewRows(DataSource* source,
                                                     const std::vector<std::string>& columns,
                                                     int64_t max_rows, size_t max_bytes) {
  BRAID_ASSIGN_OR_RETURN(const auto scan,
                         source->Scan({.columns = columns, .batch_rows = max_rows}));
  std::vector<std::string> rows;
  size_t bytes = 0;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::RecordBatch> batch, scan->Next());
    if (batch == nullptr) {
      return rows;
    }
    const JsonRows json(*batch->schema(), kMaxShownBytes);
    for (int64_t r = 0; r < batch->num_rows(); ++r) {
      std::string row;
      BRAID_RETURN_IF_ERROR(json.Append(*batch, r, &row));
      bytes += row.size();
      if (bytes > max_bytes && rows.empty()) {
        return absl::ResourceExhaustedError(absl::StrCat("the first row takes ", bytes,
                                                         " bytes as text (expected at most ",
                                                         max_bytes, "; choose fewer columns)"));
      }
      if (bytes > max_bytes) {
        return rows;
      }
      rows.push_back(std::move(row));
      if (static_cast<int64_t>(rows.size()) == max_rows) {
        return rows;
      }
    }
  }
}

}  // namespace braid
