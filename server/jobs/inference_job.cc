#include "server/jobs/inference_job.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/jobs/early_saves.h"

namespace braid {

InferenceJob::InferenceJob(int64_t version, std::unique_ptr<JobModel> model,
                           std::unique_ptr<InputSource> input, std::unique_ptr<JobOutput> output,
                           const JobRecord& record)
    : version_(version),
      model_(std::move(model)),
      input_(std::move(input)),
      output_(std::move(output)),
      stored_memory_(record.memory),
      crashed_(record.crashes > 0),
      progress_(record.progress) {
  progress_.wait_seconds = 0;
}

absl::StatusOr<JobResult> InferenceJob::Run(JobContext* context) {
  BRAID_ASSIGN_OR_RETURN(memory_, ReadMemory(stored_memory_));
  if (memory_.output.empty()) {
    BRAID_RETURN_IF_ERROR(WriteOutput(context));
  }
  JobResult result;
  result.output = memory_.output;
  result.rows = memory_.rows;
  result.skipped_rows = memory_.skipped.Before(memory_.rows);
  return result;
}

absl::Status InferenceJob::WriteOutput(JobContext* context) {
  BRAID_ASSIGN_OR_RETURN(output_rows_, output_->Open());
  BRAID_ASSIGN_OR_RETURN(progress_.total_rows, input_->Rows(context, &memory_.data));
  memory_.skipped.Restart(output_rows_);
  progress_.skipped_rows = memory_.skipped.Before(output_rows_);
  const int64_t first_row = output_rows_ + progress_.skipped_rows;
  progress_.rows = progress_.durable_rows = first_row;
  context->Report(progress_);
  if (first_row < progress_.total_rows) {
    BRAID_RETURN_IF_ERROR(OpenModel(context));
    BRAID_RETURN_IF_ERROR(Score(context, first_row));
  }
  BRAID_ASSIGN_OR_RETURN(memory_.output, output_->Close());
  memory_.rows = output_rows_;
  context->AddLog(JobLogLevel::kInfo,
                  absl::StrCat("wrote ", memory_.rows, " rows to ", memory_.output));
  // After CleanUp(), only the memory tells that the output is this job's.
  return context->Save(progress_, WriteMemory());
}

absl::Status InferenceJob::OpenModel(JobContext* context) {
  const bool continues = memory_.version != 0;
  const absl::StatusOr<int64_t> opened = model_->Open(continues ? memory_.version : version_);
  if (!opened.ok()) {
    return continues ? absl::Status(opened.status().code(),
                                    absl::StrCat("cannot continue with the version of the rows so "
                                                 "far: ",
                                                 opened.status().message()))
                     : opened.status();
  }
  memory_.version = *opened;
  context->AddLog(JobLogLevel::kInfo,
                  absl::StrCat(continues ? "continues" : "starts", " at row ", progress_.rows,
                               " of ", progress_.total_rows, " with version ", memory_.version));
  return context->Save(progress_, WriteMemory());
}

absl::Status InferenceJob::Score(JobContext* context, int64_t first_row) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<RowStream> stream, input_->Open(first_row));
  Requests requests;
  EarlySaves early_saves(crashed_, absl::Now());
  while (context->stop() == JobStop::kNone) {
    BRAID_RETURN_IF_ERROR(data_check_.Run([this] { return input_->CheckUnchanged(); }));
    if (progress_.rows > first_row && early_saves.Due(absl::Now())) {
      BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->FinishPart());
      BRAID_RETURN_IF_ERROR(SetDurable(context, durable));
    }
    absl::StatusOr<std::optional<InputRows>> read = stream->Next(model_->request_rows());
    if (absl::IsCancelled(read.status()) && context->stop() != JobStop::kNone) {
      break;
    }
    if (!read.ok()) {
      BRAID_RETURN_IF_ERROR(input_->CheckUnchanged());  // A change is the cause of such errors.
      return read.status();
    }
    std::optional<InputRows> rows = *std::move(read);
    if (!rows.has_value()) {
      BRAID_RETURN_IF_ERROR(input_->CheckUnchanged());
      while (!requests.empty()) {
        BRAID_RETURN_IF_ERROR(Collect(context, &requests));
      }
      BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->FinishPart());
      return SetDurable(context, durable);
    }
    if (rows->count == 0) {  // The data ends with rows that are left out.
      while (!requests.empty()) {
        BRAID_RETURN_IF_ERROR(Collect(context, &requests));
      }
      BRAID_RETURN_IF_ERROR(AddSkipped(context, *rows));
      progress_.rows = rows->end();
      continue;
    }
    while (requests.size() >= model_->max_in_flight()) {
      BRAID_RETURN_IF_ERROR(Collect(context, &requests));
    }
    progress_.wait_seconds += absl::ToDoubleSeconds(rows->waited);
    std::vector<HostTensor> inputs = std::move(rows->inputs);
    const int64_t count = rows->count;
    model_->Infer(std::move(inputs), count, requests.Push(*std::move(rows)));
  }
  while (!requests.empty()) {
    BRAID_RETURN_IF_ERROR(Collect(context, &requests));
  }
  return Stop(context);
}

absl::Status InferenceJob::Collect(JobContext* context, Requests* requests) {
  const Requests::Ended ended = requests->Pop();
  const InputRows& rows = ended.context;
  if (!ended.result.ok()) {
    return absl::Status(ended.result.status().code(),
                        absl::StrCat("rows ", rows.first, " to ", rows.end() - 1, ": ",
                                     ended.result.status().message()));
  }
  BRAID_RETURN_IF_ERROR(AddSkipped(context, rows));
  BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->Write(rows, *ended.result));
  output_rows_ += rows.count;
  progress_.rows = rows.end();
  return SetDurable(context, durable);
}

absl::Status InferenceJob::AddSkipped(JobContext* context, const InputRows& rows) {
  if (rows.skipped.empty()) {
    return absl::OkStatus();
  }
  skipped_log_.Add(rows.skipped, context);
  const int64_t position = output_rows_ + rows.count;
  memory_.skipped.Add(position, static_cast<int64_t>(rows.skipped.size()));
  progress_.skipped_rows = memory_.skipped.Before(position);
  return context->Save(progress_, WriteMemory());
}

absl::Status InferenceJob::Stop(JobContext* context) {
  if (context->stop() == JobStop::kDrain) {
    BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->FinishPart());
    BRAID_RETURN_IF_ERROR(SetDurable(context, durable));
  }
  return absl::CancelledError(absl::StrCat("stopped at row ", progress_.rows));
}

absl::Status InferenceJob::SetDurable(JobContext* context, int64_t rows) {
  if (const int64_t durable = rows + memory_.skipped.Before(rows);
      durable > progress_.durable_rows) {
    progress_.durable_rows = durable;
    memory_.skipped.Forget(rows);
    return context->Save(progress_, WriteMemory());
  }
  context->Report(progress_);
  return absl::OkStatus();
}

absl::StatusOr<InferenceJob::Memory> InferenceJob::ReadMemory(const std::string& text) {
  Memory memory;
  if (text.empty()) {
    return memory;
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return absl::DataLossError("memory: not a JSON object");
  }
  memory.data = json.value("data", std::string());
  memory.version = json.value("version", int64_t{0});
  memory.output = json.value("output", std::string());
  memory.rows = json.value("rows", int64_t{0});
  memory.skipped = SkippedRows::FromJson(json.value("skipped", nlohmann::json::array()));
  return memory;
}

std::string InferenceJob::WriteMemory() const {
  // A path may have any bytes; the ones that are not UTF-8 are replaced.
  return nlohmann::json{{"data", memory_.data},
                        {"version", memory_.version},
                        {"output", memory_.output},
                        {"rows", memory_.rows},
                        {"skipped", memory_.skipped.ToJson()}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace braid
