// Finds the jobs that read a file or folder.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/jobs/job_spec.h"
#include "server/jobs/store/job_store.h"

namespace braid {

// Returns the IDs of the jobs that have not ended and whose data is `path`, is below it, or
// contains it. `path` is absolute, without links. `roots`: those of DataDirectories. Blocks on the
// disk.
absl::StatusOr<std::vector<std::string>> JobsReading(const std::string& path, const JobStore& store,
                                                     const JobSpecReader& read_spec,
                                                     const std::vector<std::string>& roots);

}  // namespace braid
