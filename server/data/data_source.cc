#include "server/data/data_source.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "arrow/type.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr size_t kMaxListedBytes = 1024;
constexpr size_t kBatchBytes = size_t{16} << 20;
// More rows would not make a batch of narrow rows faster.
constexpr int64_t kMaxBatchRows = 65'536;

}  // namespace

absl::StatusOr<std::vector<int>> ColumnIndices(const std::vector<Column>& columns,
                                               const std::vector<std::string>& names) {
  std::vector<int> indices;
  if (names.empty()) {
    for (size_t c = 0; c < columns.size(); ++c) {
      indices.push_back(static_cast<int>(c));
    }
    return indices;
  }
  for (const std::string& name : names) {
    const auto found = std::find_if(columns.begin(), columns.end(),
                                    [&](const Column& column) { return column.name == name; });
    if (found == columns.end()) {
      const std::string all = absl::StrJoin(
          columns, ", ", [](std::string* out, const Column& column) { out->append(column.name); });
      return absl::InvalidArgumentError(
          absl::StrCat("unknown column '", Excerpt(name),
                       columns.size() == 1 ? "' (expected " : "' (expected one of: ",
                       Excerpt(all, kMaxListedBytes), ")"));
    }
    const int index = static_cast<int>(found - columns.begin());
    if (std::find(indices.begin(), indices.end(), index) != indices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", name, "' is listed twice (expected each column once)"));
    }
    indices.push_back(index);
  }
  return indices;
}

int64_t BatchRows(const ScanOptions& options, const std::vector<Column>& columns,
                  const std::vector<int>& indices) {
  if (options.batch_rows > 0) {
    return options.batch_rows;
  }
  size_t row_bytes = 1;
  for (const int index : indices) {
    row_bytes += EstimatedRowBytes(columns[static_cast<size_t>(index)]);
  }
  return std::clamp<int64_t>(static_cast<int64_t>(kBatchBytes / row_bytes), 1, kMaxBatchRows);
}

absl::StatusOr<std::vector<Column>> ColumnsOf(const arrow::Schema& schema) {
  std::vector<Column> columns;
  std::set<std::string> names;
  for (const std::shared_ptr<arrow::Field>& field : schema.fields()) {
    if (!names.insert(field->name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two columns are named '", field->name(), "' (expected unique names)"));
    }
    columns.push_back(ColumnOf(*field));
  }
  return columns;
}

}  // namespace braid
