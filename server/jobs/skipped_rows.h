// Rows that a job leaves out because they cannot be decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "server/data/encoded/decode_rows.h"
#include "server/jobs/job.h"

namespace braid {

// Counts left-out rows by the position in the job after which they count: a step of a training job,
// or a row of an output. A job saves the count before it moves on, so that a crash at any position
// loses none and counts none twice. Thread-compatible.
class SkippedRows {
 public:
  // Adds rows that are left out before `position`, at least the position of the call before.
  void Add(int64_t position, int64_t rows);
  // Returns the rows that are left out up to a position.
  int64_t Before(int64_t position) const;
  // Drops what lies after `position`, where the job continues.
  void Restart(int64_t position);
  // Makes the record short: the job never continues before `position`.
  void Forget(int64_t position);

  // Stores the counts, and restores them.
  nlohmann::json ToJson() const;
  static SkippedRows FromJson(const nlohmann::json& json);

 private:
  std::map<int64_t, int64_t> rows_;  // up to each position
};

// Writes one line for each left-out row into a job's log, for the first rows. A row that is left
// out again, in a later epoch, has no further line. Thread-compatible.
class SkippedRowLog {
 public:
  static constexpr size_t kMaxLines = 100;

  void Add(const std::vector<SkippedRow>& rows, JobContext* context);

 private:
  absl::flat_hash_set<int64_t> logged_;  // rows
};

}  // namespace braid
