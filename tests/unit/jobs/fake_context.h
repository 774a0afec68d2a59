// Context of a job that a test runs itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jobs/job.h"

namespace braid {

// Thread-compatible.
class FakeContext final : public JobContext {
 public:
  JobStop stop() const override { return decide_stop ? decide_stop(progress) : JobStop::kNone; }
  void WaitForStop(absl::Duration timeout) const override { waited += timeout; }
  void Report(const JobProgress& now) override { progress = now; }
  void NoteActivity() override { ++activities; }
  absl::Status Save(const JobProgress& now, absl::string_view text) override {
    progress = now;
    if (!save_error.ok()) {
      return save_error;
    }
    saved = now;
    memory = std::string(text);
    written = metrics;
    return absl::OkStatus();
  }
  void AddMetrics(int64_t step, std::vector<TrackedValue> values) override {
    for (const TrackedValue& value : values) {
      metrics[value.name][step] = value.value;
    }
  }
  void WriteMetrics() override { written = metrics; }
  void ContinueAfter(int64_t step) override { continued_after = step; }
  void AddLog(JobLogLevel, absl::string_view text) override { log.emplace_back(text); }

  // Set by tests.
  std::function<JobStop(const JobProgress&)> decide_stop;
  absl::Status save_error;

  JobProgress progress;  // last reported
  JobProgress saved;     // last saved
  std::string memory;
  using Metrics = std::map<std::string, std::map<int64_t, double>>;
  Metrics metrics;
  Metrics written;  // what is left of them after a crash
  int64_t continued_after = -1;
  int64_t activities = 0;  // calls of NoteActivity()
  std::vector<std::string> log;
  mutable absl::Duration waited;  // sum of the arguments of WaitForStop()
};

}  // namespace braid
