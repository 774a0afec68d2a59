// Reads a JobSpec stored in the job store.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/jobs/job_spec.h"

namespace braid {

// bytes: serialized JobSpec of the job `id`. DATA_LOSS if it cannot be parsed.
absl::StatusOr<JobSpec> ReadStoredJobSpec(const std::string& id, const std::string& bytes);

}  // namespace braid
