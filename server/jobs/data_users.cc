#include "server/jobs/data_users.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <variant>

#include "server/base/status.h"
#include "server/data/data_paths.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Returns the paths of the data, as the specification has them.
std::vector<std::string> DataOf(const JobSpec& spec) {
  if (const auto* inference = std::get_if<InferenceJobSpec>(&spec)) {
    return {inference->data.path};
  }
  const auto& training = std::get<TrainingJobSpec>(spec);
  std::vector<std::string> paths = {training.data.path};
  if (training.evaluation && !training.evaluation->path.empty()) {
    paths.push_back(training.evaluation->path);
  }
  return paths;
}

// Returns true if one of the paths is the other one, or below it. Both are canonical.
bool Overlap(const fs::path& left, const fs::path& right) {
  const auto [in_left, in_right] =
      std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return in_left == left.end() || in_right == right.end();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> JobsReading(const std::string& path, const JobStore& store,
                                                     const JobSpecReader& read_spec,
                                                     const std::vector<std::string>& roots) {
  JobFilter filter;
  filter.states = {JobState::kQueued, JobState::kRunning, JobState::kPaused};
  BRAID_ASSIGN_OR_RETURN(const JobPage page,
                         store.ListOldest(filter, std::numeric_limits<int64_t>::max()));
  std::vector<std::string> users;
  for (const JobRecord& job : page.jobs) {
    const absl::StatusOr<JobSpec> spec = read_spec(job.id, job.spec);
    if (!spec.ok()) {
      continue;  // It fails when it starts.
    }
    const std::vector<std::string> paths = DataOf(*spec);
    const auto reads = [&](const std::string& data) {
      const absl::StatusOr<std::string> resolved = ResolveDataPath(data, roots, "path");
      return resolved.ok() && Overlap(*resolved, path);
    };
    if (std::any_of(paths.begin(), paths.end(), reads)) {
      users.push_back(job.id);
    }
  }
  return users;
}

}  // namespace braid
