// Conversions of jobs and their specifications.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "braid/v1/job.pb.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_spec.h"
#include "server/jobs/store/job_store.h"

namespace braid {

// Converts the specification of the job `id`. INVALID_ARGUMENT, naming the field, for what can be
// told without model and data.
absl::StatusOr<JobSpec> ReadJobSpec(const std::string& id, const braid::v1::JobSpec& message);

// Names the field of an error of JobMaker::Check() as SubmitJobRequest has it: the engine does not
// know where the request holds the options of a trainer.
absl::Status QualifyJobField(const absl::Status& status);

// Returns the record to store. Equal specifications have equal bytes. INVALID_ARGUMENT naming `id`,
// spec.tags[i] or spec.priority.
absl::StatusOr<NewJob> MakeNewJob(const std::string& id, const braid::v1::JobSpec& message,
                                  const std::string& identity);

// Returns the model that a job trains or runs; empty without a kind.
const std::string& ModelOf(const braid::v1::JobSpec& message);

// INVALID_ARGUMENT naming the state.
absl::StatusOr<JobFilter> ReadFilter(const braid::v1::ListJobsRequest& request);

void WriteJob(const JobRecord& record, braid::v1::Job* message);
void WriteProgress(const JobProgress& progress, braid::v1::JobProgress* message);
void WriteTransition(const JobTransition& transition, braid::v1::JobTransition* message);
void WriteMetrics(const JobMetricPage& page, braid::v1::GetJobMetricsResponse* message);
void WriteLogLine(const JobLogLine& line, braid::v1::JobLogLine* message);

}  // namespace braid
