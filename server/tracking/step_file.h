// Metrics of a run as CSV or as JSON Lines.
//
// CSV has one line per value, "step,time,name,value", because the columns of a file that grows must
// not change when a new metric appears. JSON Lines has one object per step:
// {"step":1,"time":1700000000.125,"loss":0.5}. `time` is in seconds since 1970. A value that is not
// finite is nan, inf or -inf in CSV and null in JSON, which has no other way to write it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/tracking/tail_file.h"
#include "server/tracking/tracked_values.h"

namespace braid {

// Steps increase from line to line, and a step has one value per metric. Thread-compatible. Errors
// as TailFile.
class StepFile {
 public:
  enum class Format { kCsv, kJsonLines };
  static constexpr int64_t kAllSteps = std::numeric_limits<int64_t>::max();

  StepFile(std::string path, Format format) : path_(std::move(path)), format_(format) {}

  // Opens or creates the file and removes the steps after `last` and what a crash has left
  // incomplete. Reads the file, unless `last` is negative. May be called again.
  absl::Status Open(int64_t last);
  // Appends values, whose steps must not decrease. Values of the newest step are added to it; a
  // metric that it has already gets the new value. After an error, Write() tries again with the
  // values that were not written, of which it keeps up to 1 MiB. Requires Open().
  absl::Status Write(absl::Span<const TrackedValues> all);
  // Returns the values of the newest step; the step is -1 if there is none.
  const TrackedValues& newest() const { return row_; }

 private:
  // Returns nullopt for a line that is not complete.
  std::optional<TrackedValues> Parse(const std::string& line) const;
  std::string Text(const TrackedValues& row) const;

  const std::string path_;
  const Format format_;
  std::optional<TailFile> file_;
  TrackedValues row_{-1, {}, {}};  // of the newest step, which may still change
  std::string unwritten_;          // lines before it that could not be written
  int64_t written_ = 0;            // bytes of the file before unwritten_ and row_
};

}  // namespace braid
