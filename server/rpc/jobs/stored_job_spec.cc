#include "server/rpc/jobs/stored_job_spec.h"

#include "braid/v1/job.pb.h"
#include "server/rpc/jobs/job_messages.h"

namespace braid {

absl::StatusOr<JobSpec> ReadStoredJobSpec(const std::string& id, const std::string& bytes) {
  braid::v1::JobSpec message;
  if (!message.ParseFromString(bytes)) {
    return absl::DataLossError("spec: the stored specification cannot be parsed");
  }
  return ReadJobSpec(id, message);
}

}  // namespace braid
