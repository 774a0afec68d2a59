#include "server/jobs/job_maker.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "arrow/type.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/data/batch_loader.h"
#include "server/data/data_paths.h"
#include "server/devices/host_memory.h"
#include "server/jobs/check_columns.h"
#include "server/jobs/dataset_input.h"
#include "server/jobs/file_output.h"
#include "server/jobs/inference_job.h"
#include "server/jobs/registry_trainer.h"
#include "server/jobs/served_job_model.h"
#include "server/jobs/training_job.h"
#include "server/remote/object_path.h"
#include "server/storage/files.h"

namespace braid {
namespace {

// Default of EvaluateRequest.k.
constexpr int64_t kDefaultTopK = 5;

int64_t TopK(const JobEvaluation& evaluation) {
  return evaluation.k == 0 ? kDefaultTopK : evaluation.k;
}

// Returns one row of each target, without data.
TrainerUse UseOf(const TrainingJobSpec& spec, const std::vector<RowType>& targets) {
  TrainerUse use;
  for (size_t i = 0; i < targets.size(); ++i) {
    HostTensor& target = use.targets.emplace_back();
    target.name = spec.data.targets[i].name;
    target.type = targets[i].type;
    target.shape = targets[i].shape;
    target.shape.insert(target.shape.begin(), 1);
  }
  if (spec.evaluation) {
    use.metrics = spec.evaluation->metrics;
    use.top_k = TopK(*spec.evaluation);
  }
  return use;
}

// Names the data, which holds the targets.
absl::Status QualifyTargets(const absl::Status& error) {
  const std::optional<std::string> field = InvalidFieldOf(error);
  return field && absl::StartsWith(*field, "targets") ? PrefixField("spec.train.data.", error)
                                                      : error;
}

// Returns the data of a job on `model`, whose decoders apply to columns without their own.
DatasetOptions DataOf(const JobData& data, const JobServices& services, const std::string& model,
                      int64_t version, const std::string& field) {
  DatasetOptions options{.path = data.path,
                         .inputs = data.inputs,
                         .targets = data.targets,
                         .path_field = absl::StrCat(field, ".path"),
                         .columns_field = field};
  options.input_decode = data.input_decode;
  options.target_decode = data.target_decode;
  options.skip_unreadable = data.skip_unreadable;
  options.model = [publisher = services.publisher, model, version] {
    return publisher->FindConfig(model, version);
  };
  const std::filesystem::path folder = std::filesystem::path(services.model_repository) / model;
  if (version != 0) {
    options.decode_directories.push_back(folder / absl::StrCat(version));
  }
  options.decode_directories.push_back(folder);
  return options;
}

absl::Status CheckTrainingInputs(const TrainingJobSpec& spec, const Dataset& data,
                                 const ModelConfig& config) {
  std::vector<NamedColumns> lists = {{"spec.train.data.inputs", data.input_columns, data.inputs}};
  if (spec.trainer.loss_mode == LossMode::kModel) {  // The model takes the targets as inputs.
    lists.push_back({"spec.train.data.targets", data.target_columns, data.targets});
  }
  return CheckInputColumns(lists, config);
}

// Returns the totals as far as they are known.
absl::StatusOr<JobProgress> Totals(const TrainingJobSpec& spec, std::optional<int64_t> rows) {
  JobProgress totals;
  if (!rows) {
    totals.total_steps = spec.plan.steps;
    return totals;
  }
  int64_t used = *rows;
  if (spec.validation_split > 0) {
    const RowSplit split(*rows, spec.validation_split, spec.trainer.seed);
    BRAID_RETURN_IF_ERROR(DatasetBatches::CheckSplit(split, spec.validation_split, *rows));
    used = split.training_rows();
  }
  const int64_t per_epoch =
      BatchLoader::BatchesPerEpoch(used, spec.plan.batch_size, spec.plan.drop_last);
  if (per_epoch == 0) {
    return NoBatches(spec.plan.batch_size, used);
  }
  totals.total_steps = spec.plan.steps > 0 ? spec.plan.steps : spec.plan.epochs * per_epoch;
  totals.epochs = (totals.total_steps + per_epoch - 1) / per_epoch;
  totals.total_rows = RowsInSteps(totals.total_steps, used, spec.plan);
  return totals;
}

// Checks that a one-cycle schedule does not end before the job. `total_steps`: 0: unknown.
absl::Status CheckCycle(const ScheduleSpec& schedule, int64_t total_steps) {
  const auto* const cycle = std::get_if<OneCycleScheduleSpec>(&schedule.kind);
  if (cycle == nullptr || cycle->total_steps == 0 || cycle->total_steps >= total_steps) {
    return absl::OkStatus();
  }
  return InvalidField(
      "schedule.one_cycle.total_steps",
      absl::StrCat(cycle->total_steps, " is less than the ", total_steps,
                   " steps of the job (expected at least ", total_steps, ", or none)"));
}

}  // namespace

DatasetOptions JobMaker::TrainingData(const TrainingJobSpec& spec) const {
  return DataOf(spec.data, services_, spec.trainer.model, spec.trainer.base_version,
                "spec.train.data");
}

// Has the columns of the training data.
DatasetOptions JobMaker::EvaluationData(const TrainingJobSpec& spec) const {
  DatasetOptions options = TrainingData(spec);
  options.evaluation = true;
  if (!spec.evaluation->path.empty()) {
    options.decode_field = options.columns_field;
    options.path = spec.evaluation->path;
    options.path_field = "spec.train.evaluation.path";
    options.columns_field = "";
  }
  return options;
}

DatasetOptions JobMaker::InferenceData(const InferenceJobSpec& spec) const {
  return DataOf(spec.data, services_, spec.model, spec.version, "spec.infer.data");
}

DatasetBatches::Options JobMaker::TrainingBatches(const TrainingJobSpec& spec) const {
  DatasetBatches::Options options{TrainingData(spec)};
  options.batch_size = spec.plan.batch_size;
  options.seed = spec.trainer.seed;
  options.validation_split = spec.validation_split;
  options.shuffle = spec.shuffle;
  options.drop_last = spec.plan.drop_last;
  options.weight_column = spec.weight_column;
  return options;
}

DatasetBatches::Options JobMaker::EvaluationBatches(const TrainingJobSpec& spec) const {
  DatasetBatches::Options options{EvaluationData(spec)};
  options.batch_size = spec.evaluation->batch_size;
  options.seed = spec.trainer.seed;
  options.validation_split = spec.evaluation->path.empty() ? spec.validation_split : 0;
  options.evaluation = true;
  return options;
}

absl::StatusOr<std::unique_ptr<Job>> JobMaker::Make(const JobRecord& record) {
  BRAID_ASSIGN_OR_RETURN(const JobSpec spec, read_spec_(record.id, record.spec));
  if (const auto* training = std::get_if<TrainingJobSpec>(&spec)) {
    return MakeTraining(*training, record);
  }
  return MakeInference(std::get<InferenceJobSpec>(spec), record);
}

absl::Status JobMaker::Remove(const JobRecord& record) {
  if (record.kind != JobKind::kTrain) {
    return RemoveTree(UploadDirectory(record.id));
  }
  const auto deleted = WaitFor<absl::Status>(
      [&](auto done) { services_.trainers->Delete(JobTrainerName(record.id), done); });
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

absl::StatusOr<JobProgress> JobMaker::Check(const JobSpec& spec,
                                            const CancelCheck& check_cancelled) const {
  if (const auto* training = std::get_if<TrainingJobSpec>(&spec)) {
    return CheckTraining(*training, check_cancelled);
  }
  return CheckInference(std::get<InferenceJobSpec>(spec), check_cancelled);
}

absl::StatusOr<Dataset> JobMaker::OpenToCheck(const DatasetOptions& options,
                                              const CancelCheck& check_cancelled) const {
  BRAID_RETURN_IF_ERROR(check_cancelled());
  const CopyProgress wait = StopAfterWait(options.path);
  return OpenDataset(options, services_.data, [&](int64_t bytes, int64_t total) {
    BRAID_RETURN_IF_ERROR(check_cancelled());
    return wait(bytes, total);
  });
}

absl::StatusOr<JobProgress> JobMaker::CheckTraining(const TrainingJobSpec& spec,
                                                    const CancelCheck& check_cancelled) const {
  BRAID_ASSIGN_OR_RETURN(
      const ModelConfig config,
      services_.publisher->FindConfig(spec.trainer.model, spec.trainer.base_version));
  const DatasetOptions training = TrainingData(spec);
  const absl::StatusOr<Dataset> opened = OpenToCheck(training, check_cancelled);
  if (absl::IsDeadlineExceeded(opened.status())) {
    return Totals(spec, std::nullopt);  // The job checks the data when it has copied it.
  }
  BRAID_RETURN_IF_ERROR(opened.status());
  const Dataset& data = *opened;
  BRAID_RETURN_IF_ERROR(CheckTrainingInputs(spec, data, config));
  BRAID_RETURN_IF_ERROR(CheckBatchMemory(data, spec.plan.batch_size, ReachableHostBytes("/"),
                                         "spec.train.batch_size"));
  BRAID_RETURN_IF_ERROR(CheckFirstRow(training, data, check_cancelled));
  BRAID_ASSIGN_OR_RETURN(const JobProgress totals, Totals(spec, data.source->KnownRows()));
  BRAID_RETURN_IF_ERROR(CheckCycle(spec.trainer.schedule, totals.total_steps));
  const TrainerSpec trainer =
      WithTotalSteps(spec.trainer, std::max<int64_t>(totals.total_steps, 1));
  BRAID_RETURN_IF_ERROR(
      QualifyTargets(services_.trainers->Check(trainer, UseOf(spec, data.targets))));
  if (!spec.weight_column.empty()) {
    BRAID_RETURN_IF_ERROR(DatasetBatches::CheckWeights(data.source->columns(), spec.weight_column));
  }
  if (spec.evaluation) {
    const DatasetOptions options = EvaluationData(spec);
    const absl::StatusOr<Dataset> evaluation = OpenToCheck(options, check_cancelled);
    if (absl::IsDeadlineExceeded(evaluation.status())) {
      return totals;
    }
    BRAID_RETURN_IF_ERROR(evaluation.status());
    BRAID_RETURN_IF_ERROR(CheckTrainingInputs(spec, *evaluation, config));
    BRAID_RETURN_IF_ERROR(CheckBatchMemory(*evaluation, spec.evaluation->batch_size,
                                           ReachableHostBytes("/"),
                                           "spec.train.evaluation.batch_size"));
    BRAID_RETURN_IF_ERROR(CheckFirstRow(options, *evaluation, check_cancelled));
  }
  return totals;
}

absl::StatusOr<JobProgress> JobMaker::CheckInference(const InferenceJobSpec& spec,
                                                     const CancelCheck& check_cancelled) const {
  BRAID_ASSIGN_OR_RETURN(const ModelConfig config,
                         services_.publisher->FindConfig(spec.model, spec.version));
  std::vector<std::string> names;
  for (const TensorSpec& output : config.outputs) {
    if (!output.scalar) {
      names.push_back(output.name);
    }
  }
  BRAID_ASSIGN_OR_RETURN(const FileOutput::Options output, OutputOptions(spec, "", ""));
  const DatasetOptions options = InferenceData(spec);
  const absl::StatusOr<Dataset> opened = OpenToCheck(options, check_cancelled);
  if (absl::IsDeadlineExceeded(opened.status())) {
    BRAID_RETURN_IF_ERROR(FileOutput::Check(output, {}, names));
    return JobProgress();  // The job checks the data when it has copied it.
  }
  BRAID_RETURN_IF_ERROR(opened.status());
  const Dataset& data = *opened;
  BRAID_RETURN_IF_ERROR(
      CheckInputColumns({{"spec.infer.data.inputs", data.input_columns, data.inputs}}, config));
  BRAID_RETURN_IF_ERROR(CheckFirstRow(options, data, check_cancelled));
  BRAID_RETURN_IF_ERROR(DatasetInput::CheckKept(data.source->columns(), spec.keep));
  std::vector<std::shared_ptr<arrow::Field>> kept;
  for (const std::string& column : spec.keep) {
    kept.push_back(data.source->schema()->GetFieldByName(column));
  }
  BRAID_RETURN_IF_ERROR(FileOutput::Check(output, kept, names));
  const std::optional<int64_t> rows = data.source->KnownRows();
  if (rows == 0) {
    return InvalidField("spec.infer.data.path", "has no rows (expected at least one)");
  }
  JobProgress totals;
  totals.total_rows = rows.value_or(0);
  return totals;
}

absl::StatusOr<std::unique_ptr<Job>> JobMaker::MakeTraining(const TrainingJobSpec& spec,
                                                            const JobRecord& record) const {
  std::vector<std::string> metrics;
  int64_t k = kDefaultTopK;
  std::unique_ptr<BatchSource> evaluation;
  if (spec.evaluation) {
    metrics = spec.evaluation->metrics;
    k = TopK(*spec.evaluation);
    evaluation =
        std::make_unique<DatasetBatches>(EvaluationBatches(spec), services_.data, services_.rows);
  }
  return std::make_unique<TrainingJob>(
      spec.plan,
      std::make_unique<RegistryTrainer>(services_.trainers, spec.trainer, spec.trainer_request,
                                        std::move(metrics), k),
      std::make_unique<DatasetBatches>(TrainingBatches(spec), services_.data, services_.rows),
      std::move(evaluation), record);
}

absl::StatusOr<std::unique_ptr<Job>> JobMaker::MakeInference(const InferenceJobSpec& spec,
                                                             const JobRecord& record) const {
  BRAID_ASSIGN_OR_RETURN(FileOutput::Options output,
                         OutputOptions(spec, record.id, absl::StrCat("job ", record.number)));
  return std::make_unique<InferenceJob>(
      spec.version,
      std::make_unique<ServedJobModel>(services_.publisher, spec.model, spec.batch_size,
                                       services_.metrics),
      std::make_unique<DatasetInput>(DatasetInput::Options{InferenceData(spec), spec.keep},
                                     services_.data),
      std::make_unique<FileOutput>(std::move(output), services_.clock), record);
}

std::string JobMaker::UploadDirectory(const std::string& id) const {
  return absl::StrCat(services_.upload_root, "/", id);
}

absl::StatusOr<FileOutput::Options> JobMaker::OutputOptions(const InferenceJobSpec& spec,
                                                            const std::string& id,
                                                            const std::string& signature) const {
  constexpr absl::string_view kField = "spec.infer.output.path";
  FileOutput::Options options;
  if (IsObjectPath(spec.output)) {
    BRAID_ASSIGN_OR_RETURN(options.object,
                           ResolveRemotePath(spec.output, services_.data.remote, kField));
    options.store = services_.data.remote->store;
    const absl::string_view name =
        absl::string_view(options.object).substr(options.object.rfind('/') + 1);
    options.file.path =
        absl::StrCat(UploadDirectory(id), "/", name, absl::EndsWith(spec.output, "/") ? "/" : "");
  } else {
    BRAID_ASSIGN_OR_RETURN(options.file.path,
                           ResolveOutputPath(spec.output, services_.output_root, kField));
  }
  options.file.signature = signature;
  options.file.overwrite = spec.overwrite;
  options.file.format = spec.format;
  options.outputs = spec.outputs;
  return options;
}

}  // namespace braid
