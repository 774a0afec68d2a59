#include "server/jobs/skipped_rows.h"

#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace braid {

void SkippedRows::Add(int64_t position, int64_t rows) {
  const int64_t before = rows_.empty() ? 0 : rows_.rbegin()->second;
  rows_[position] = before + rows;
}

int64_t SkippedRows::Before(int64_t position) const {
  const auto next = rows_.upper_bound(position);
  return next == rows_.begin() ? 0 : std::prev(next)->second;
}

void SkippedRows::Restart(int64_t position) {
  rows_.erase(rows_.upper_bound(position), rows_.end());
}

void SkippedRows::Forget(int64_t position) {
  const auto next = rows_.upper_bound(position);
  if (next != rows_.begin()) {
    rows_.erase(rows_.begin(), std::prev(next));
  }
}

nlohmann::json SkippedRows::ToJson() const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [position, rows] : rows_) {
    json.push_back({position, rows});
  }
  return json;
}

SkippedRows SkippedRows::FromJson(const nlohmann::json& json) {
  SkippedRows skipped;
  for (const nlohmann::json& entry : json) {
    if (entry.is_array() && entry.size() == 2 && entry[0].is_number_integer() &&
        entry[1].is_number_integer()) {
      skipped.rows_[entry[0].get<int64_t>()] = entry[1].get<int64_t>();
    }
  }
  return skipped;
}

void SkippedRowLog::Add(const std::vector<SkippedRow>& rows, JobContext* context) {
  for (const SkippedRow& row : rows) {
    if (logged_.size() > kMaxLines) {
      return;
    }
    if (!logged_.insert(row.row).second) {
      continue;
    }
    context->AddLog(JobLogLevel::kWarning,
                    logged_.size() > kMaxLines
                        ? absl::StrCat("more rows are left out, which are not logged (the first ",
                                       kMaxLines, " are)")
                        : absl::StrCat("left out: ", row.error.message()));
  }
}

}  // namespace braid
