// Makes jobs that run on the server's trainers, models and data.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/data/open_data_source.h"
#include "server/data/row_cache.h"
#include "server/jobs/dataset.h"
#include "server/jobs/dataset_batches.h"
#include "server/jobs/file_output.h"
#include "server/jobs/job.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_spec.h"
#include "server/telemetry/metrics.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// Services that jobs use. The pointers outlive the jobs.
struct JobServices {
  TrainerRegistry* trainers = nullptr;
  Publisher* publisher = nullptr;  // finds versions
  RowCache* rows = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  DataDirectories data;
  // Directory of the models' files, where paths of tokenizers may start.
  std::string model_repository;
  // Absolute directory of outputs; relative paths of outputs start here.
  std::string output_root;
  // Absolute directory of outputs that are uploaded to S3 when they are complete, one directory per
  // job.
  std::string upload_root;
};

// Thread-safe.
class JobMaker final : public JobFactory {
 public:
  JobMaker(JobServices services, JobSpecReader read_spec)
      : services_(std::move(services)), read_spec_(std::move(read_spec)) {}

  absl::StatusOr<std::unique_ptr<Job>> Make(const JobRecord& record) override;
  absl::Status Remove(const JobRecord& record) override;

  // Checks a job before it is submitted: model, options, data, columns, types, shapes and output.
  // Returns the totals as far as they are known without reading the data. Blocks on the disk and
  // the network; ends early with the error of `check_cancelled`. INVALID_ARGUMENT, NOT_FOUND or
  // ALREADY_EXISTS, naming the field.
  absl::StatusOr<JobProgress> Check(const JobSpec& spec, const CancelCheck& check_cancelled) const;

 private:
  // Return the datasets of a job.
  DatasetOptions TrainingData(const TrainingJobSpec& spec) const;
  DatasetOptions EvaluationData(const TrainingJobSpec& spec) const;  // requires spec.evaluation
  DatasetOptions InferenceData(const InferenceJobSpec& spec) const;
  DatasetBatches::Options TrainingBatches(const TrainingJobSpec& spec) const;
  // Requires spec.evaluation.
  DatasetBatches::Options EvaluationBatches(const TrainingJobSpec& spec) const;

  absl::StatusOr<std::unique_ptr<Job>> MakeTraining(const TrainingJobSpec& spec,
                                                    const JobRecord& record) const;
  absl::StatusOr<std::unique_ptr<Job>> MakeInference(const InferenceJobSpec& spec,
                                                     const JobRecord& record) const;
  absl::StatusOr<JobProgress> CheckTraining(const TrainingJobSpec& spec,
                                            const CancelCheck& check_cancelled) const;
  absl::StatusOr<JobProgress> CheckInference(const InferenceJobSpec& spec,
                                             const CancelCheck& check_cancelled) const;
  // Opens data to check it. DEADLINE_EXCEEDED if it is not copied from S3 within 10 s.
  absl::StatusOr<Dataset> OpenToCheck(const DatasetOptions& options,
                                      const CancelCheck& check_cancelled) const;
  // Returns the directory of a job's output that is uploaded to S3.
  std::string UploadDirectory(const std::string& id) const;
  // `id`: of the job. `signature`: tells the job, which alone may continue its output, from all
  // others.
  absl::StatusOr<FileOutput::Options> OutputOptions(const InferenceJobSpec& spec,
                                                    const std::string& id,
                                                    const std::string& signature) const;

  const JobServices services_;
  const JobSpecReader read_spec_;
};

}  // namespace braid
