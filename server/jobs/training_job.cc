#include "server/jobs/training_job.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "re2/re2.h"
#include "server/base/status.h"
#include "server/data/batch_loader.h"
#include "server/jobs/early_saves.h"

namespace braid {
namespace {

using Json = nlohmann::json;
using MetricValues = std::map<std::string, double>;

bool IsBetter(const std::string& metric, double value, double best) {
  return LargerIsBetter(metric) ? value > best : value < best;
}

MetricValues MetricsOf(const EvaluationResult& result) {
  MetricValues metrics = result.metrics;
  if (result.loss.has_value()) {
    metrics["loss"] = *result.loss;
  }
  return metrics;
}

std::vector<TrackedValue> TrackedValuesOf(const OperationResult& result, int64_t skipped_rows) {
  std::vector<TrackedValue> values;
  if (result.loss.has_value() && !result.skipped) {
    values.push_back({"loss", *result.loss});
  }
  if (skipped_rows > 0) {
    values.push_back({"skipped_rows", static_cast<double>(skipped_rows)});
  }
  if (result.lr.has_value()) {
    values.push_back({"lr", *result.lr});
  }
  if (result.gradient_norm.has_value()) {
    values.push_back({"gradient_norm", *result.gradient_norm});
  }
  return values;
}

// JSON has no NaN: it is written as null.
MetricValues ReadMetrics(const Json& json) {
  MetricValues metrics;
  for (const auto& [name, value] : json.items()) {
    metrics[name] =
        value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  return metrics;
}

std::string Text(const MetricValues& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", value);
  }
  return text;
}

// Returns the bits of the exponent, which are all set in NaN and infinity; 0: not floating-point.
uint64_t ExponentMask(DataType type) {
  switch (type) {
    case DataType::kFp16:
      return 0x7C00;
    case DataType::kBf16:
      return 0x7F80;
    case DataType::kFp32:
      return 0x7F800000;
    case DataType::kFp64:
      return 0x7FF0000000000000;
    default:
      return 0;
  }
}

// Returns the first row with an element that is NaN or infinite; nullopt if there is none.
std::optional<int64_t> FirstRowNotFinite(const HostTensor& tensor) {
  const uint64_t mask = ExponentMask(tensor.type);
  const size_t size = DataTypeSize(tensor.type);
  const auto* const bytes = static_cast<const char*>(tensor.data);
  for (size_t at = 0; mask != 0 && at < tensor.bytes; at += size) {
    uint64_t element = 0;  // HostTensor is little-endian, like the machine
    std::memcpy(&element, bytes + at, size);
    if ((element & mask) == mask) {
      return static_cast<int64_t>(at / (tensor.bytes / static_cast<size_t>(tensor.rows())));
    }
  }
  return std::nullopt;
}

// Batches of an evaluation, which end with CANCELLED when the job must stop.
class StoppableStream final : public BatchStream {
 public:
  StoppableStream(std::unique_ptr<BatchStream> batches, JobContext* context)
      : batches_(std::move(batches)), context_(context) {}

  absl::StatusOr<std::optional<TrainingBatch>> Next() override {
    if (context_->stop() != JobStop::kNone) {
      return absl::CancelledError("the job must stop");
    }
    BRAID_ASSIGN_OR_RETURN(std::optional<TrainingBatch> batch, batches_->Next());
    context_->NoteActivity();
    skipped_ += batch.has_value() ? batch->skipped.size() : 0;
    return batch;
  }

  // Rows that were left out so far.
  size_t skipped() const { return skipped_; }

 private:
  const std::unique_ptr<BatchStream> batches_;
  JobContext* const context_;
  size_t skipped_ = 0;
};

}  // namespace

bool LargerIsBetter(absl::string_view metric) {
  return metric == "accuracy" || metric == "top_k" || metric == "binary_accuracy" ||
         metric == "iou";
}

int64_t RowsInSteps(int64_t steps, int64_t rows, const TrainingPlan& plan) {
  const int64_t per_epoch = BatchLoader::BatchesPerEpoch(rows, plan.batch_size, plan.drop_last);
  const int64_t used = plan.drop_last ? per_epoch * plan.batch_size : rows;
  return steps / per_epoch * used + steps % per_epoch * plan.batch_size;
}

absl::Status NoBatches(int64_t batch_size, int64_t rows) {
  return rows == 0 ? InvalidField("spec.train.data.path",
                                  "no rows are left for training (expected at least one)")
                   : InvalidField("spec.train.batch_size",
                                  absl::StrCat(batch_size, " exceeds the ", rows,
                                               " rows for training, and drop_last leaves out the "
                                               "only batch (expected at most ",
                                               rows, ")"));
}

TrainingJob::TrainingJob(TrainingPlan plan, std::unique_ptr<JobTrainer> trainer,
                         std::unique_ptr<BatchSource> data, std::unique_ptr<BatchSource> evaluation,
                         const JobRecord& record)
    : plan_(std::move(plan)),
      trainer_(std::move(trainer)),
      data_(std::move(data)),
      evaluation_(std::move(evaluation)),
      stored_memory_(record.memory),
      crashed_(record.crashes > 0),
      progress_(record.progress) {
  progress_.wait_seconds = 0;
}

absl::StatusOr<JobResult> TrainingJob::Run(JobContext* context) {
  const absl::Cleanup close = [this] { trainer_->Close(); };
  BRAID_ASSIGN_OR_RETURN(memory_, ReadMemory(stored_memory_));
  if (!memory_.trained) {
    BRAID_RETURN_IF_ERROR(CountSteps(context));
    BRAID_ASSIGN_OR_RETURN(const JobTrainer::Position position, OpenTrainer(context, total_steps_));
    BRAID_RETURN_IF_ERROR(Train(context, position));
    BRAID_RETURN_IF_ERROR(FinishTraining(context));
  } else if (MustPublish()) {
    BRAID_RETURN_IF_ERROR(OpenTrainer(context, memory_.step).status());
  }
  if (MustPublish()) {
    BRAID_RETURN_IF_ERROR(Publish(context));
  }
  return Result();
}

absl::Status TrainingJob::CountSteps(JobContext* context) {
  const bool starts = memory_.data.empty();
  BRAID_ASSIGN_OR_RETURN(rows_, data_->Rows(context, &memory_.data));
  if (evaluation_ != nullptr) {  // Its errors must not come after hours of training.
    BRAID_RETURN_IF_ERROR(evaluation_->Rows(context, &memory_.evaluation_data).status());
  }
  if (starts) {
    BRAID_RETURN_IF_ERROR(Save(context));
  }
  steps_per_epoch_ = BatchLoader::BatchesPerEpoch(rows_, plan_.batch_size, plan_.drop_last);
  if (steps_per_epoch_ == 0) {
    return NoBatches(plan_.batch_size, rows_);
  }
  total_steps_ = plan_.steps > 0 ? plan_.steps : plan_.epochs * steps_per_epoch_;
  return absl::OkStatus();
}

absl::StatusOr<JobTrainer::Position> TrainingJob::OpenTrainer(JobContext* context,
                                                              int64_t total_steps) {
  return trainer_->Open(memory_.best_checkpoint, total_steps,
                        [context] { context->WriteMetrics(); });
}

absl::Status TrainingJob::Resume(JobContext* context, const JobTrainer::Position& position,
                                 int64_t step) {
  memory_.skipped.Restart(step);
  SetPosition(step);
  const int64_t recorded = progress_.durable_rows;
  progress_.durable_rows = RowsBefore(std::min(position.durable, step));
  if (progress_.durable_rows > recorded) {  // The server crashed after it wrote a checkpoint.
    BRAID_RETURN_IF_ERROR(Save(context));
  }
  context->ContinueAfter(step);
  if (position.loss.has_value() && step == position.applied) {
    progress_.loss = position.loss;
  }
  context->Report(progress_);
  context->AddLog(JobLogLevel::kInfo, absl::StrCat(step == 0 ? "started" : "resumed", " at step ",
                                                   step, " of ", LastStep()));
  return absl::OkStatus();
}

absl::Status TrainingJob::Train(JobContext* context, const JobTrainer::Position& position) {
  // A publication that was applied before a crash is an operation after the last step.
  int64_t step = std::min(position.applied, LastStep());
  BRAID_RETURN_IF_ERROR(Resume(context, position, step));
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<BatchStream> batches, data_->Open(step));
  Steps steps;
  const int64_t first = step;
  EarlySaves early_saves(crashed_, absl::Now());
  while (true) {
    const bool stop = context->stop() != JobStop::kNone;
    const bool save = step > first && early_saves.Due(absl::Now());
    const bool evaluate = EvaluationDue(step);
    if (stop || save || evaluate || step == LastStep()) {
      while (!steps.empty()) {
        BRAID_RETURN_IF_ERROR(Collect(context, &steps));
      }
    }
    if (stop) {
      return Stop(context);
    }
    if (save) {
      BRAID_RETURN_IF_ERROR(Checkpoint(context));
    }
    if (evaluate) {
      const absl::Status evaluated = Evaluate(context, step);
      if (context->stop() != JobStop::kNone) {
        return Stop(context);
      }
      BRAID_RETURN_IF_ERROR(evaluated);
    }
    if (step == LastStep()) {  // The evaluation may have ended the training.
      return absl::OkStatus();
    }
    BRAID_RETURN_IF_ERROR(data_check_.Run([this] { return CheckData(); }));
    absl::StatusOr<std::optional<TrainingBatch>> loaded = batches->Next();
    if (absl::IsCancelled(loaded.status()) && context->stop() != JobStop::kNone) {
      continue;  // The steps so far are saved.
    }
    if (!loaded.ok()) {
      BRAID_RETURN_IF_ERROR(CheckData());  // A change is the cause of errors in its rows.
      return loaded.status();
    }
    std::optional<TrainingBatch> batch = *std::move(loaded);
    if (!batch.has_value()) {
      return absl::InternalError(
          absl::StrCat("data: no batch ", step, " (expected ", total_steps_, " batches)"));
    }
    if (steps.size() == kDepth) {
      BRAID_RETURN_IF_ERROR(Collect(context, &steps));
    }
    BRAID_RETURN_IF_ERROR(AddSkipped(context, step + 1, batch->skipped));
    StartStep(context, ++step, *std::move(batch), &steps);
  }
}

void TrainingJob::StartStep(JobContext* context, int64_t step, TrainingBatch batch, Steps* steps) {
  TrainingBatch counts;  // Without the tensors, which the trainer releases.
  counts.rows = batch.rows;
  counts.skipped = std::move(batch.skipped);
  counts.waited = batch.waited;
  // Adds the metrics in the callback: a checkpoint may follow before this thread takes the result.
  trainer_->Step(
      step, std::move(batch),
      [context, skipped_rows = memory_.skipped.Before(step),
       done = steps->Push(std::move(counts))](absl::StatusOr<OperationResult> result) mutable {
        if (result.ok()) {
          context->AddMetrics(result->applied_sequence, TrackedValuesOf(*result, skipped_rows));
        }
        done(std::move(result));
      });
}

absl::Status TrainingJob::AddSkipped(JobContext* context, int64_t step,
                                     const std::vector<SkippedRow>& rows) {
  if (rows.empty()) {
    return absl::OkStatus();
  }
  skipped_log_.Add(rows, context);
  memory_.skipped.Add(step, static_cast<int64_t>(rows.size()));
  return Save(context);
}

absl::Status TrainingJob::Collect(JobContext* context, Steps* steps) {
  const Steps::Ended ended = steps->Pop();
  if (!ended.result.ok()) {
    return StepError(progress_.step + 1, ended.context, ended.result.status());
  }
  const OperationResult& result = *ended.result;
  const int64_t step = result.applied_sequence;
  SetPosition(step);
  progress_.wait_seconds += absl::ToDoubleSeconds(ended.context.waited);
  if (result.loss.has_value() && !result.skipped) {
    progress_.loss = result.loss;
  }
  const int64_t durable = RowsBefore(std::min(result.durable_sequence, step));
  if (durable > progress_.durable_rows) {
    progress_.durable_rows = durable;
    memory_.skipped.Forget(std::min(result.durable_sequence, step));
    return Save(context);
  }
  context->Report(progress_);
  return absl::OkStatus();
}

absl::Status TrainingJob::CheckData() {
  BRAID_RETURN_IF_ERROR(data_->CheckUnchanged());
  return evaluation_ == nullptr ? absl::OkStatus() : evaluation_->CheckUnchanged();
}

std::string TrainingJob::DescribeNotFinite(int64_t step) const {
  const absl::StatusOr<std::unique_ptr<BatchStream>> batches = data_->Open(step - 1);
  if (!batches.ok()) {
    return "";  // the error of the step is reported
  }
  const absl::StatusOr<std::optional<TrainingBatch>> batch = (*batches)->Next();
  if (!batch.ok() || !batch->has_value()) {
    return "";
  }
  for (const HostTensor& input : (*batch)->inputs) {
    if (const std::optional<int64_t> row = FirstRowNotFinite(input)) {
      return absl::StrCat(" (input '", input.name, "' holds NaN or infinity in row ", *row,
                          " of the batch, which is row ", data_->DatasetRow(step - 1, *row),
                          " of the dataset)");
    }
  }
  return "";
}

absl::Status TrainingJob::StepError(int64_t step, const TrainingBatch& batch,
                                    const absl::Status& error) const {
  std::string text = absl::StrCat("step ", step, ": ", error.message());
  static const RE2& row_number = *new RE2(R"(\brow (\d+)\b)");
  int64_t row = 0;
  if (!batch.skipped.empty()) {
    return {error.code(), text};  // Rows of the batch are not those at its positions.
  }
  if (RE2::PartialMatch(std::string(error.message()), row_number, &row) && row < plan_.batch_size) {
    absl::StrAppend(&text, " (row ", row, " of the batch is row ", data_->DatasetRow(step - 1, row),
                    " of the dataset)");
  } else if (absl::StrContains(error.message(), "is not finite")) {
    absl::StrAppend(&text, DescribeNotFinite(step));
  }
  return {error.code(), text};
}

absl::Status TrainingJob::Stop(JobContext* context) {
  if (const absl::Status saved = trainer_->SaveCheckpoint(); saved.ok()) {
    progress_.durable_rows = progress_.rows;
    if (context->stop() == JobStop::kPause || context->stop() == JobStop::kPreempt) {
      trainer_->Release();  // Other jobs need the memory.
    }
  } else {
    context->AddLog(JobLogLevel::kWarning,
                    absl::StrCat("stops without a checkpoint: ", saved.message()));
  }
  BRAID_RETURN_IF_ERROR(Save(context));
  return absl::CancelledError(absl::StrCat("stopped at step ", progress_.step));
}

absl::Status TrainingJob::Checkpoint(JobContext* context) {
  BRAID_RETURN_IF_ERROR(trainer_->SaveCheckpoint());
  progress_.durable_rows = progress_.rows;
  return Save(context);
}

bool TrainingJob::EvaluationDue(int64_t step) const {
  if (evaluation_ == nullptr || step <= memory_.evaluated) {
    return false;
  }
  const int64_t interval = plan_.evaluate_steps > 0
                               ? plan_.evaluate_steps
                               : std::max<int64_t>(plan_.evaluate_epochs, 1) * steps_per_epoch_;
  return step == total_steps_ || step % interval == 0;
}

absl::Status TrainingJob::Evaluate(JobContext* context, int64_t step) {
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<BatchStream> batches, evaluation_->Open(0));
  StoppableStream stoppable(std::move(batches), context);
  BRAID_ASSIGN_OR_RETURN(const EvaluationResult result, trainer_->Evaluate(&stoppable));
  memory_.metrics = MetricsOf(result);
  memory_.evaluated = step;
  std::vector<TrackedValue> values;
  for (const auto& [name, value] : memory_.metrics) {
    values.push_back({absl::StrCat("evaluation/", name), value});
  }
  context->AddMetrics(step, std::move(values));
  context->AddLog(
      JobLogLevel::kInfo,
      absl::StrCat("evaluation at step ", step, ": ", Text(memory_.metrics),
                   stoppable.skipped() == 0
                       ? ""
                       : absl::StrCat(" (", stoppable.skipped(), " unreadable rows left out)")));
  if (plan_.publish == JobPublish::kBest) {
    const auto value = memory_.metrics.find(plan_.best_metric);
    if (value == memory_.metrics.end()) {
      return InvalidField("spec.train.best_metric",
                          absl::StrCat("'", plan_.best_metric,
                                       "' is not evaluated (expected loss, or a metric of the "
                                       "evaluation)"));
    }
    if (!std::isnan(value->second) &&
        (memory_.best_step == 0 ||
         IsBetter(plan_.best_metric, value->second, memory_.best_metrics.at(plan_.best_metric)))) {
      // After a crash in between, this evaluation is made again.
      BRAID_ASSIGN_OR_RETURN(memory_.best_checkpoint, trainer_->KeepBest());
      memory_.best_step = step;
      memory_.best_metrics = memory_.metrics;
    }
  }
  if (plan_.early_stopping.has_value()) {
    BRAID_RETURN_IF_ERROR(CheckEarlyStopping(*plan_.early_stopping, step));
  }
  return Save(context);
}

absl::Status TrainingJob::CheckEarlyStopping(const EarlyStopping& rule, int64_t step) {
  const auto found = memory_.metrics.find(rule.metric);
  if (found == memory_.metrics.end()) {
    return InvalidField("spec.train.early_stopping.metric",
                        absl::StrCat("'", rule.metric,
                                     "' is not evaluated (expected loss, or a metric of the "
                                     "evaluation)"));
  }
  const double value = found->second;
  const std::optional<double> best = memory_.stopping_best;
  const bool better =
      !std::isnan(value) &&
      (!best.has_value() ||
       (rule.larger_is_better ? value > *best + rule.min_delta : value < *best - rule.min_delta));
  if (better) {
    memory_.stopping_best = value;
    memory_.stopping_waited = 0;
  } else if (++memory_.stopping_waited >= rule.patience && step < total_steps_) {
    memory_.stopped_step = step;
    memory_.planned_steps = total_steps_;
    SetPosition(step);
  }
  return absl::OkStatus();
}

int64_t TrainingJob::LastStep() const {
  return memory_.stopped_step > 0 ? memory_.stopped_step : total_steps_;
}

std::string TrainingJob::StopReason() const {
  return memory_.stopped_step == 0
             ? ""
             : absl::StrCat("stopped early at step ", memory_.stopped_step, " of ",
                            memory_.planned_steps, ": no better '", plan_.early_stopping->metric,
                            "' in ", memory_.stopping_waited,
                            memory_.stopping_waited == 1 ? " evaluation" : " evaluations");
}

absl::Status TrainingJob::FinishTraining(JobContext* context) {
  const bool best = plan_.publish == JobPublish::kBest;
  if (best && memory_.best_step == 0) {
    return absl::FailedPreconditionError(absl::StrCat("publish: no evaluation has a value of '",
                                                      plan_.best_metric,
                                                      "' (all are NaN; lower the learning rate)"));
  }
  if (evaluation_ == nullptr && progress_.loss.has_value()) {
    memory_.metrics["loss"] = *progress_.loss;
  }
  // A crash from here on must not undo the last steps, which are not made again.
  BRAID_RETURN_IF_ERROR(trainer_->SaveCheckpoint());
  progress_.durable_rows = progress_.rows;
  memory_.step = best ? memory_.best_step : LastStep();
  if (memory_.stopped_step > 0) {
    context->AddLog(JobLogLevel::kInfo, StopReason());
  }
  memory_.trained = true;  // RestoreBest() undoes steps, which must not be made again.
  return Save(context);
}

bool TrainingJob::MustPublish() const {
  return plan_.publish != JobPublish::kNothing && memory_.version == 0;
}

absl::Status TrainingJob::Publish(JobContext* context) {
  if (plan_.publish == JobPublish::kBest) {
    BRAID_RETURN_IF_ERROR(trainer_->RestoreBest(memory_.best_checkpoint));
  }
  BRAID_ASSIGN_OR_RETURN(memory_.version, trainer_->Publish(memory_.step));
  context->AddLog(JobLogLevel::kInfo, absl::StrCat("published version ", memory_.version));
  return Save(context);
}

JobResult TrainingJob::Result() const {
  JobResult result;
  result.version = memory_.version;
  result.step = memory_.step;
  result.skipped_rows = memory_.skipped.Before(std::numeric_limits<int64_t>::max());
  result.reason = StopReason();
  result.metrics = plan_.publish == JobPublish::kBest ? memory_.best_metrics : memory_.metrics;
  return result;
}

void TrainingJob::SetPosition(int64_t step) {
  progress_.step = step;
  progress_.total_steps = LastStep();
  progress_.rows = RowsBefore(step);
  progress_.skipped_rows = memory_.skipped.Before(step);
  progress_.total_rows = RowsBefore(progress_.total_steps);
  progress_.epochs = (progress_.total_steps + steps_per_epoch_ - 1) / steps_per_epoch_;
  progress_.epoch = std::min(step / steps_per_epoch_ + 1, progress_.epochs);
}

int64_t TrainingJob::RowsBefore(int64_t step) const { return RowsInSteps(step, rows_, plan_); }

absl::StatusOr<TrainingJob::Memory> TrainingJob::ReadMemory(const std::string& text) {
  Memory memory;
  if (text.empty()) {
    return memory;
  }
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return absl::DataLossError("memory: not a JSON object");
  }
  memory.data = json.value("data", "");
  memory.evaluation_data = json.value("evaluation_data", "");
  memory.evaluated = json.value("evaluated", int64_t{0});
  memory.metrics = ReadMetrics(json.value("metrics", Json::object()));
  memory.best_step = json.value("best_step", int64_t{0});
  memory.best_checkpoint = json.value("best_checkpoint", "");
  memory.best_metrics = ReadMetrics(json.value("best_metrics", Json::object()));
  memory.trained = json.value("trained", false);
  memory.step = json.value("step", int64_t{0});
  memory.version = json.value("version", int64_t{0});
  if (const auto best = json.find("stopping_best"); best != json.end() && best->is_number()) {
    memory.stopping_best = best->get<double>();
  }
  memory.stopping_waited = json.value("stopping_waited", int64_t{0});
  memory.stopped_step = json.value("stopped_step", int64_t{0});
  memory.planned_steps = json.value("planned_steps", int64_t{0});
  memory.skipped = SkippedRows::FromJson(json.value("skipped", Json::array()));
  return memory;
}

std::string TrainingJob::WriteMemory() const {
  Json json = {{"data", memory_.data},
               {"evaluation_data", memory_.evaluation_data},
               {"evaluated", memory_.evaluated},
               {"metrics", memory_.metrics},
               {"best_step", memory_.best_step},
               {"best_checkpoint", memory_.best_checkpoint},
               {"best_metrics", memory_.best_metrics},
               {"trained", memory_.trained},
               {"step", memory_.step},
               {"version", memory_.version},
               {"stopping_waited", memory_.stopping_waited},
               {"stopped_step", memory_.stopped_step},
               {"planned_steps", memory_.planned_steps},
               {"skipped", memory_.skipped.ToJson()}};
  if (memory_.stopping_best.has_value()) {
    json["stopping_best"] = *memory_.stopping_best;
  }
  return json.dump();
}

}  // namespace braid
