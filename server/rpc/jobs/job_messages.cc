#include "server/rpc/jobs/job_messages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/jobs/registry_trainer.h"
#include "server/rpc/jobs/decode_messages.h"
#include "server/rpc/training/spec_messages.h"
#include "server/storage/names.h"

namespace braid {
namespace {

constexpr size_t kMaxIdBytes = 64;
constexpr int kMaxTags = 16;
constexpr size_t kMaxTagBytes = 64;
constexpr int kMaxPriority = 100;
// Keeps the products of rows, epochs and batch sizes within 64 bits.
constexpr int64_t kMaxEpochs = 1'000'000;
constexpr int64_t kMaxSteps = int64_t{1} << 53;
constexpr int64_t kMaxBatchSize = int64_t{1} << 31;
constexpr absl::Duration kDefaultCheckpointInterval = absl::Seconds(60);

absl::Status CheckRange(const std::string& field, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    return InvalidField(field,
                        absl::StrCat(value, " is out of range (expected ", min, " to ", max, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckGiven(const std::string& field, const std::string& value,
                        absl::string_view expected) {
  return value.empty() ? InvalidField(field, absl::StrCat("missing (expected ", expected, ")"))
                       : absl::OkStatus();
}

absl::Status CheckId(const std::string& id) {
  if (id.size() <= kMaxIdBytes && IsPlainName(id)) {
    return absl::OkStatus();
  }
  return InvalidField("id", absl::StrCat("'", absl::CHexEscape(Excerpt(id)),
                                         "' is not a job ID (expected 1 to ", kMaxIdBytes,
                                         " letters, digits, '_', '-' and '.', not starting with "
                                         "'.')"));
}

absl::StatusOr<TensorColumn> ReadColumn(const braid::v1::TensorColumn& message,
                                        const std::string& field) {
  TensorColumn column;
  BRAID_RETURN_IF_ERROR(
      CheckGiven(absl::StrCat(field, ".name"), message.name(), "the name of an input or target"));
  column.name = message.name();
  column.columns.assign(message.columns().begin(), message.columns().end());
  if (column.columns.empty()) {
    column.columns = {message.name()};
  }
  if (!message.datatype().empty()) {
    column.type = DataTypeFromName(message.datatype());
    if (!column.type) {
      return InvalidField(absl::StrCat(field, ".datatype"),
                          absl::StrCat("'", Excerpt(message.datatype()), "' (expected one of ",
                                       AllDataTypeNames(), ")"));
    }
  }
  if (message.has_scale()) {
    if (!std::isfinite(message.scale()) || message.scale() == 0) {
      return InvalidField(
          absl::StrCat(field, ".scale"),
          absl::StrCat(message.scale(), " (expected a finite number other than 0)"));
    }
    if (!column.type || !IsFloatingPoint(*column.type)) {
      return InvalidField(absl::StrCat(field, ".scale"),
                          "requires a floating-point datatype (expected FP16, BF16, FP32 or FP64 "
                          "in datatype)");
    }
    column.scale = message.scale();
  }
  if ((message.decode().has_image() || message.decode().has_text()) &&
      (column.type || column.scale != 1)) {
    return InvalidField(absl::StrCat(field, ".datatype"),
                        "given with decode (remove it, and add to_float to the transforms)");
  }
  return column;
}

// `evaluates`: evaluation_decode is allowed.
absl::StatusOr<std::vector<ColumnDecode>> ReadColumnDecode(
    const google::protobuf::RepeatedPtrField<braid::v1::TensorColumn>& messages,
    const std::string& field, bool evaluates) {
  std::vector<ColumnDecode> decode;
  for (int i = 0; i < messages.size(); ++i) {
    const braid::v1::TensorColumn& message = messages[i];
    const std::string name = absl::StrCat(field, "[", i, "]");
    ColumnDecode& column = decode.emplace_back();
    BRAID_ASSIGN_OR_RETURN(column.spec,
                           ReadDecode(message.decode(), absl::StrCat(name, ".decode")));
    column.paths = message.decode().paths();
    const absl::string_view random = column.spec ? RandomTransform(*column.spec) : "";
    if (!evaluates && !random.empty()) {
      return InvalidField(
          absl::StrCat(name, ".decode"),
          absl::StrCat(random, " is random (an inference job cannot use random transforms)"));
    }
    if (!message.has_evaluation_decode()) {
      continue;
    }
    const std::string evaluation = absl::StrCat(name, ".evaluation_decode");
    if (!evaluates) {
      return InvalidField(evaluation, "given for an inference job (expected decode)");
    }
    BRAID_ASSIGN_OR_RETURN(column.evaluation, ReadDecode(message.evaluation_decode(), evaluation));
    if (!column.evaluation || message.evaluation_decode().paths()) {
      return InvalidField(evaluation, column.evaluation ? "has paths (expected them in decode only)"
                                                        : "missing (expected image or text)");
    }
    if (const absl::string_view own = RandomTransform(*column.evaluation); !own.empty()) {
      return InvalidField(evaluation, absl::StrCat(own,
                                                   " is random (an evaluation cannot use random "
                                                   "transforms)"));
    }
  }
  return decode;
}

absl::StatusOr<bool> ReadSkipUnreadable(int on_unreadable, const std::string& field) {
  switch (on_unreadable) {
    case braid::v1::JobData::ON_UNREADABLE_UNSPECIFIED:
    case braid::v1::JobData::ON_UNREADABLE_FAIL:
      return false;
    case braid::v1::JobData::ON_UNREADABLE_SKIP:
      return true;
    default:
      return InvalidField(field, absl::StrCat("unknown value ", on_unreadable,
                                              " (expected ON_UNREADABLE_FAIL or "
                                              "ON_UNREADABLE_SKIP)"));
  }
}

absl::StatusOr<std::vector<TensorColumn>> ReadColumns(
    const google::protobuf::RepeatedPtrField<braid::v1::TensorColumn>& messages,
    const std::string& field) {
  std::vector<TensorColumn> columns;
  for (int i = 0; i < messages.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    BRAID_ASSIGN_OR_RETURN(TensorColumn column, ReadColumn(messages[i], name));
    for (const TensorColumn& other : columns) {
      if (other.name == column.name) {
        return InvalidField(absl::StrCat(name, ".name"),
                            absl::StrCat("'", Excerpt(column.name), "' is given twice"));
      }
    }
    columns.push_back(std::move(column));
  }
  return columns;
}

// `evaluates`: the job may evaluate.
absl::StatusOr<JobData> ReadData(const braid::v1::JobData& message, const std::string& field,
                                 bool evaluates) {
  JobData data;
  BRAID_RETURN_IF_ERROR(
      CheckGiven(absl::StrCat(field, ".path"), message.path(), "a file or folder"));
  data.path = message.path();
  BRAID_ASSIGN_OR_RETURN(data.inputs,
                         ReadColumns(message.inputs(), absl::StrCat(field, ".inputs")));
  BRAID_ASSIGN_OR_RETURN(data.targets,
                         ReadColumns(message.targets(), absl::StrCat(field, ".targets")));
  BRAID_ASSIGN_OR_RETURN(
      data.input_decode,
      ReadColumnDecode(message.inputs(), absl::StrCat(field, ".inputs"), evaluates));
  BRAID_ASSIGN_OR_RETURN(
      data.target_decode,
      ReadColumnDecode(message.targets(), absl::StrCat(field, ".targets"), evaluates));
  BRAID_ASSIGN_OR_RETURN(
      data.skip_unreadable,
      ReadSkipUnreadable(message.on_unreadable(), absl::StrCat(field, ".on_unreadable")));
  return data;
}

braid::v1::CreateTrainerRequest TrainerRequest(const std::string& id,
                                               const braid::v1::TrainingJob& job) {
  braid::v1::CreateTrainerRequest request;
  request.set_model(job.model());
  request.set_version(job.version());
  request.set_name(JobTrainerName(id));
  *request.mutable_losses() = job.losses();
  *request.mutable_optimizer() = job.optimizer();
  *request.mutable_options() = job.options();
  braid::v1::CheckpointPolicy* const policy = request.mutable_options()->mutable_checkpoints();
  if (policy->every_operations() == 0 && policy->every_seconds() == 0) {
    policy->set_every_seconds(absl::ToDoubleSeconds(kDefaultCheckpointInterval));
  }
  return request;
}

absl::Status ReadTrainer(const std::string& id, const braid::v1::TrainingJob& job,
                         TrainingJobSpec* spec) {
  BRAID_RETURN_IF_ERROR(CheckGiven("spec.train.model", job.model(), "a model of the repository"));
  if (!job.has_optimizer()) {
    return InvalidField("spec.train.optimizer", "missing (expected an optimizer)");
  }
  if (job.options().loss_mode() == braid::v1::LOSS_MODE_CLIENT) {
    return InvalidField("spec.train.options.loss_mode",
                        "LOSS_MODE_CLIENT (a job has no client to compute the loss)");
  }
  if (job.options().idle_timeout_seconds() != 0) {
    return InvalidField("spec.train.options.idle_timeout_seconds",
                        absl::StrCat(job.options().idle_timeout_seconds(),
                                     " (expected 0: a job's trainer is freed when the job ends)"));
  }
  braid::v1::CreateTrainerRequest request = TrainerRequest(id, job);
  absl::StatusOr<TrainerSpec> trainer = ReadSpec(request);
  if (!trainer.ok()) {
    return PrefixField("spec.train.", QualifyField(trainer.status()));
  }
  spec->trainer = *std::move(trainer);
  spec->trainer.from_trainer = job.from_trainer();
  spec->trainer.from_checkpoint = job.from_checkpoint();
  if (job.version() != 0 && !job.from_trainer().empty()) {
    return InvalidField("spec.train.from_trainer", "cannot be combined with version");
  }
  if (!job.from_checkpoint().empty() && job.from_trainer().empty()) {
    return InvalidField("spec.train.from_checkpoint", "given without from_trainer (expected both)");
  }
  spec->trainer_request = [request = std::move(request)](int64_t total_steps) {
    braid::v1::CreateTrainerRequest stored = request;
    if (stored.options().schedule().has_one_cycle() &&
        stored.options().schedule().one_cycle().total_steps() == 0) {
      stored.mutable_options()->mutable_schedule()->mutable_one_cycle()->set_total_steps(
          total_steps);
    }
    return stored.SerializeAsString();
  };
  return absl::OkStatus();
}

absl::Status ReadLength(const braid::v1::TrainingJob& job, TrainingPlan* plan) {
  switch (job.length_case()) {
    case braid::v1::TrainingJob::kEpochs:
      plan->epochs = job.epochs();
      return CheckRange("spec.train.epochs", job.epochs(), 1, kMaxEpochs);
    case braid::v1::TrainingJob::kSteps:
      plan->steps = job.steps();
      return CheckRange("spec.train.steps", job.steps(), 1, kMaxSteps);
    default:
      return InvalidField("spec.train.epochs", "missing (expected epochs or steps)");
  }
}

absl::Status ReadEvaluation(const braid::v1::TrainingJob& job, TrainingJobSpec* spec) {
  const braid::v1::JobEvaluation& message = job.evaluation();
  JobEvaluation evaluation;
  evaluation.path = message.path();
  evaluation.metrics.assign(message.metrics().begin(), message.metrics().end());
  evaluation.k = message.k();
  evaluation.batch_size = message.batch_size() == 0 ? job.batch_size() : message.batch_size();
  BRAID_RETURN_IF_ERROR(
      CheckRange("spec.train.evaluation.batch_size", evaluation.batch_size, 1, kMaxBatchSize));
  if (evaluation.path.empty() && job.validation_split() == 0) {
    return InvalidField("spec.train.evaluation.path",
                        "missing (expected a dataset, or a validation_split above 0)");
  }
  const braid::v1::Interval& every = message.every();
  switch (every.unit_case()) {
    case braid::v1::Interval::kEpochs:
      spec->plan.evaluate_epochs = every.epochs();
      BRAID_RETURN_IF_ERROR(
          CheckRange("spec.train.evaluation.every.epochs", every.epochs(), 1, kMaxEpochs));
      break;
    case braid::v1::Interval::kSteps:
      spec->plan.evaluate_steps = every.steps();
      BRAID_RETURN_IF_ERROR(
          CheckRange("spec.train.evaluation.every.steps", every.steps(), 1, kMaxSteps));
      break;
    default:
      break;
  }
  spec->evaluation = std::move(evaluation);
  return absl::OkStatus();
}

absl::StatusOr<JobPublish> ReadPublish(int publish) {
  switch (publish) {
    case braid::v1::TrainingJob::PUBLISH_UNSPECIFIED:
    case braid::v1::TrainingJob::PUBLISH_NOTHING:
      return JobPublish::kNothing;
    case braid::v1::TrainingJob::PUBLISH_LAST:
      return JobPublish::kLast;
    case braid::v1::TrainingJob::PUBLISH_BEST:
      return JobPublish::kBest;
    default:
      return InvalidField("spec.train.publish",
                          absl::StrCat("unknown value ", publish,
                                       " (expected PUBLISH_NOTHING, PUBLISH_LAST or "
                                       "PUBLISH_BEST)"));
  }
}

// Returns true for "loss" and the metrics of the evaluation.
bool IsEvaluated(const TrainingJobSpec& spec, const std::string& metric) {
  return metric == "loss" ||
         (spec.evaluation && std::ranges::count(spec.evaluation->metrics, metric) > 0);
}

absl::Status ReadEarlyStopping(const braid::v1::EarlyStopping& message, TrainingJobSpec* spec) {
  if (!spec->evaluation) {
    return InvalidField("spec.train.early_stopping",
                        "needs the values of evaluations (expected evaluation as well)");
  }
  EarlyStopping rule;
  rule.metric = message.metric().empty() ? spec->plan.best_metric : message.metric();
  if (!IsEvaluated(*spec, rule.metric)) {
    return InvalidField("spec.train.early_stopping.metric",
                        absl::StrCat("'", Excerpt(rule.metric),
                                     "' (expected loss, or a metric of the evaluation)"));
  }
  switch (message.mode()) {
    case braid::v1::EarlyStopping::MODE_UNSPECIFIED:
      rule.larger_is_better = LargerIsBetter(rule.metric);
      break;
    case braid::v1::EarlyStopping::MODE_MIN:
    case braid::v1::EarlyStopping::MODE_MAX:
      rule.larger_is_better = message.mode() == braid::v1::EarlyStopping::MODE_MAX;
      break;
    default:
      return InvalidField("spec.train.early_stopping.mode",
                          absl::StrCat("unknown value ", static_cast<int>(message.mode()),
                                       " (expected MODE_MIN or MODE_MAX)"));
  }
  rule.patience = message.patience();
  BRAID_RETURN_IF_ERROR(
      CheckRange("spec.train.early_stopping.patience", rule.patience, 1, kMaxSteps));
  rule.min_delta = message.min_delta();
  if (!(rule.min_delta >= 0 && std::isfinite(rule.min_delta))) {
    return InvalidField("spec.train.early_stopping.min_delta",
                        absl::StrCat(rule.min_delta, " (expected a finite number, at least 0)"));
  }
  spec->plan.early_stopping = std::move(rule);
  return absl::OkStatus();
}

absl::Status ReadBest(const braid::v1::TrainingJob& job, TrainingJobSpec* spec) {
  BRAID_ASSIGN_OR_RETURN(spec->plan.publish, ReadPublish(job.publish()));
  if (spec->plan.publish == JobPublish::kBest && !spec->evaluation) {
    return InvalidField(
        "spec.train.publish",
        "the best weights need an evaluation (expected evaluation, or PUBLISH_LAST)");
  }
  if (job.best_metric().empty()) {
    return absl::OkStatus();
  }
  spec->plan.best_metric = job.best_metric();
  return IsEvaluated(*spec, job.best_metric())
             ? absl::OkStatus()
             : InvalidField("spec.train.best_metric",
                            absl::StrCat("'", Excerpt(job.best_metric()),
                                         "' (expected loss, or a metric of the evaluation)"));
}

absl::StatusOr<JobSpec> ReadTraining(const std::string& id, const braid::v1::TrainingJob& job) {
  TrainingJobSpec spec;
  BRAID_RETURN_IF_ERROR(ReadTrainer(id, job, &spec));
  BRAID_ASSIGN_OR_RETURN(spec.data, ReadData(job.data(), "spec.train.data", /*evaluates=*/true));
  BRAID_RETURN_IF_ERROR(ReadLength(job, &spec.plan));
  BRAID_RETURN_IF_ERROR(CheckRange("spec.train.batch_size", job.batch_size(), 1, kMaxBatchSize));
  spec.plan.batch_size = job.batch_size();
  spec.plan.drop_last = job.drop_last();
  spec.shuffle = !job.has_shuffle() || job.shuffle();
  spec.weight_column = job.weight_column();
  spec.validation_split = job.validation_split();
  if (!(spec.validation_split >= 0 && spec.validation_split < 1)) {
    return InvalidField("spec.train.validation_split",
                        absl::StrCat(spec.validation_split, " (expected a number in [0, 1))"));
  }
  if (job.has_evaluation()) {
    BRAID_RETURN_IF_ERROR(ReadEvaluation(job, &spec));
  }
  BRAID_RETURN_IF_ERROR(ReadBest(job, &spec));
  if (job.has_early_stopping()) {
    BRAID_RETURN_IF_ERROR(ReadEarlyStopping(job.early_stopping(), &spec));
  }
  return JobSpec(std::move(spec));
}

absl::StatusOr<std::optional<DataFormat>> ReadFormat(int format) {
  switch (format) {
    case braid::v1::JobOutput::FORMAT_UNSPECIFIED:
      return std::optional<DataFormat>();
    case braid::v1::JobOutput::FORMAT_PARQUET:
      return std::optional(DataFormat::kParquet);
    case braid::v1::JobOutput::FORMAT_NPY:
      return std::optional(DataFormat::kNpy);
    case braid::v1::JobOutput::FORMAT_JSON_LINES:
      return std::optional(DataFormat::kJsonLines);
    default:
      return InvalidField("spec.infer.output.format",
                          absl::StrCat("unknown value ", format,
                                       " (expected FORMAT_PARQUET, FORMAT_NPY or "
                                       "FORMAT_JSON_LINES)"));
  }
}

absl::StatusOr<JobSpec> ReadInference(const braid::v1::InferenceJob& job) {
  InferenceJobSpec spec;
  BRAID_RETURN_IF_ERROR(CheckGiven("spec.infer.model", job.model(), "a model of the repository"));
  spec.model = job.model();
  BRAID_RETURN_IF_ERROR(
      CheckRange("spec.infer.version", job.version(), 0, std::numeric_limits<int64_t>::max()));
  spec.version = job.version();
  BRAID_ASSIGN_OR_RETURN(spec.data, ReadData(job.data(), "spec.infer.data", /*evaluates=*/false));
  if (!spec.data.targets.empty()) {
    return InvalidField("spec.infer.data.targets", "given (an inference job takes no targets)");
  }
  const braid::v1::JobOutput& output = job.output();
  BRAID_RETURN_IF_ERROR(CheckGiven("spec.infer.output.path", output.path(),
                                   "a file, or a folder with '/' at its end"));
  spec.output = output.path();
  BRAID_ASSIGN_OR_RETURN(spec.format, ReadFormat(output.format()));
  spec.keep.assign(output.keep().begin(), output.keep().end());
  for (int i = 0; i < output.outputs_size(); ++i) {
    const braid::v1::OutputColumn& column = output.outputs(i);
    const std::string field = absl::StrCat("spec.infer.output.outputs[", i, "]");
    BRAID_RETURN_IF_ERROR(
        CheckGiven(absl::StrCat(field, ".name"), column.name(), "the name of an output"));
    spec.outputs.emplace_back(column.name(),
                              column.column().empty() ? column.name() : column.column());
  }
  spec.overwrite = output.overwrite();
  BRAID_RETURN_IF_ERROR(CheckRange("spec.infer.batch_size", job.batch_size(), 0, kMaxBatchSize));
  spec.batch_size = job.batch_size();
  return JobSpec(std::move(spec));
}

double UnixSeconds(absl::Time time) {
  return time == absl::InfiniteFuture() ? 0 : absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

void WriteResult(const JobResult& result, braid::v1::JobResult* message) {
  message->set_version(result.version);
  message->mutable_metrics()->insert(result.metrics.begin(), result.metrics.end());
  message->set_step(result.step);
  message->set_output(result.output);
  message->set_rows(result.rows);
  message->set_skipped_rows(result.skipped_rows);
}

}  // namespace

absl::StatusOr<JobSpec> ReadJobSpec(const std::string& id, const braid::v1::JobSpec& message) {
  switch (message.kind_case()) {
    case braid::v1::JobSpec::kTrain:
      return ReadTraining(id, message.train());
    case braid::v1::JobSpec::kInfer:
      return ReadInference(message.infer());
    default:
      return InvalidField("spec.kind", "missing (expected train or infer)");
  }
}

absl::Status QualifyJobField(const absl::Status& status) {
  const std::optional<std::string> field = InvalidFieldOf(status);
  if (!field || absl::StartsWith(*field, "spec.")) {
    return status;
  }
  const std::string first = field->substr(0, field->find_first_of(".["));
  const bool of_job = braid::v1::TrainingJob::descriptor()->FindFieldByName(first) != nullptr;
  return PrefixField("spec.train.", of_job ? status : QualifyField(status));
}

const std::string& ModelOf(const braid::v1::JobSpec& message) {
  // A message without the kind returns the default, an empty name.
  return message.has_train() ? message.train().model() : message.infer().model();
}

absl::StatusOr<NewJob> MakeNewJob(const std::string& id, const braid::v1::JobSpec& message,
                                  const std::string& identity) {
  BRAID_RETURN_IF_ERROR(CheckId(id));
  BRAID_RETURN_IF_ERROR(
      CheckRange("spec.priority", message.priority(), -kMaxPriority, kMaxPriority));
  if (message.tags_size() > kMaxTags) {
    return InvalidField(
        "spec.tags", absl::StrCat(message.tags_size(), " tags (expected at most ", kMaxTags, ")"));
  }
  for (int i = 0; i < message.tags_size(); ++i) {
    if (message.tags(i).empty() || message.tags(i).size() > kMaxTagBytes) {
      return InvalidField(
          absl::StrCat("spec.tags[", i, "]"),
          absl::StrCat(message.tags(i).size(), " bytes (expected 1 to ", kMaxTagBytes, ")"));
    }
  }
  NewJob job;
  job.id = id;
  job.kind = message.has_train() ? JobKind::kTrain : JobKind::kInfer;
  job.model = ModelOf(message);
  job.tags.assign(message.tags().begin(), message.tags().end());
  job.priority = message.priority();
  {
    google::protobuf::io::StringOutputStream stream(&job.spec);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  job.identity = identity;
  return job;
}

absl::StatusOr<JobFilter> ReadFilter(const braid::v1::ListJobsRequest& request) {
  JobFilter filter;
  for (int i = 0; i < request.states_size(); ++i) {
    const auto state = static_cast<JobState>(request.states(i));
    if (std::ranges::count(kJobStates, state) == 0) {
      return InvalidField(absl::StrCat("states[", i, "]"),
                          absl::StrCat("unknown value ", request.states(i),
                                       " (expected a JobState other than "
                                       "JOB_STATE_UNSPECIFIED)"));
    }
    filter.states.push_back(state);
  }
  filter.model = request.model();
  filter.tag = request.tag();
  filter.identity = request.identity();
  return filter;
}

void WriteJob(const JobRecord& record, braid::v1::Job* message) {
  message->set_id(record.id);
  // A specification that cannot be parsed, of a damaged record, is left out.
  if (!message->mutable_spec()->ParseFromString(record.spec)) {
    message->clear_spec();
  }
  message->set_state(static_cast<braid::v1::JobState>(record.state));
  message->set_reason(record.reason);
  message->set_identity(record.identity);
  message->set_created(UnixSeconds(record.created));
  message->set_started(UnixSeconds(record.started));
  message->set_ended(UnixSeconds(record.ended));
  message->set_attempts(record.attempts);
  WriteProgress(record.progress, message->mutable_progress());
  if (record.state == JobState::kSucceeded) {
    WriteResult(record.result, message->mutable_result());
  }
  message->set_cancel_requested(record.cancel_requested);
  message->set_pause_requested(record.pause_requested);
  if (record.kind == JobKind::kTrain) {
    message->set_trainer(JobTrainerName(record.id));
  }
}

void WriteProgress(const JobProgress& progress, braid::v1::JobProgress* message) {
  message->set_rows(progress.rows);
  message->set_total_rows(progress.total_rows);
  message->set_step(progress.step);
  message->set_total_steps(progress.total_steps);
  message->set_epoch(progress.epoch);
  message->set_epochs(progress.epochs);
  if (progress.loss) {
    message->set_loss(*progress.loss);
  }
  message->set_rows_per_second(progress.rows_per_second);
  message->set_wait_seconds(progress.wait_seconds);
  message->set_durable_rows(progress.durable_rows);
  message->set_skipped_rows(progress.skipped_rows);
}

void WriteTransition(const JobTransition& transition, braid::v1::JobTransition* message) {
  message->set_number(transition.number);
  message->set_time(UnixSeconds(transition.time));
  if (transition.from) {
    message->set_from(static_cast<braid::v1::JobState>(*transition.from));
  }
  message->set_to(static_cast<braid::v1::JobState>(transition.to));
  message->set_reason(transition.reason);
}

void WriteMetrics(const JobMetricPage& page, braid::v1::GetJobMetricsResponse* message) {
  std::map<std::string, braid::v1::GetJobMetricsResponse::Series> series;
  for (const JobMetric& metric : page.metrics) {
    braid::v1::GetJobMetricsResponse::Series& one = series[metric.name];
    one.add_steps(metric.step);
    one.add_values(metric.value);
  }
  for (auto& [name, one] : series) {
    one.set_name(name);
    *message->add_series() = std::move(one);
  }
  message->set_next_step(page.next_step);
}

void WriteLogLine(const JobLogLine& line, braid::v1::JobLogLine* message) {
  message->set_number(line.number);
  message->set_time(UnixSeconds(line.time));
  message->set_level(static_cast<braid::v1::JobLogLine::Level>(line.level));
  message->set_text(line.text);
}

}  // namespace braid
