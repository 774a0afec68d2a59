// Specification of a job. server/rpc/jobs converts it from the protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data/output/data_writer.h"
#include "server/data/tensor_column.h"
#include "server/jobs/dataset.h"
#include "server/jobs/training_job.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Rows of a dataset, and the columns that become tensors.
struct JobData {
  std::string path;
  std::vector<TensorColumn> inputs;
  std::vector<TensorColumn> targets;
  // One for each of `inputs` and `targets`.
  std::vector<ColumnDecode> input_decode = {};
  std::vector<ColumnDecode> target_decode = {};
  // Leaves out rows that cannot be decoded. False: the job fails.
  bool skip_unreadable = false;
};

struct JobEvaluation {
  std::string path;  // empty: the rows of the validation split
  std::vector<std::string> metrics;
  int64_t k = 0;  // 0: the default of Evaluation
  int64_t batch_size = 0;
};

struct TrainingJobSpec {
  TrainerSpec trainer;
  // Returns what the trainer registry stores of WithTotalSteps(trainer, total_steps).
  std::function<std::string(int64_t total_steps)> trainer_request;
  JobData data;
  TrainingPlan plan;
  bool shuffle = true;
  double validation_split = 0;
  std::string weight_column;  // empty: all rows once
  std::optional<JobEvaluation> evaluation;
};

struct InferenceJobSpec {
  std::string model;
  int64_t version = 0;  // 0: the newest when the job first starts
  JobData data;
  std::string output;                // path
  std::optional<DataFormat> format;  // nullopt: by the suffix of the path
  std::vector<std::string> keep;
  // Outputs of the model and the columns that they become; empty: all, under their own names.
  std::vector<std::pair<std::string, std::string>> outputs;
  bool overwrite = false;
  int64_t batch_size = 0;  // 0: chosen by measuring
};

using JobSpec = std::variant<TrainingJobSpec, InferenceJobSpec>;

// Parses NewJob::spec of the job `id`.
using JobSpecReader =
    std::function<absl::StatusOr<JobSpec>(const std::string& id, const std::string& spec)>;

}  // namespace braid
