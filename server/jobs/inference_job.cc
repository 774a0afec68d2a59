#include "server/jobs/inference_job.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/data/tensor_conversion.h"
#include "server/jobs/early_saves.h"

namespace braid {
namespace {

// Limits on the rows that are sorted by length together: requests, as in training, bytes of their
// results, and time until they are written.
constexpr int64_t kWindowRequests = 50;
constexpr size_t kMaxWindowBytes = size_t{64} << 20;
constexpr absl::Duration kMaxWindowTime = absl::Seconds(5);

// Together about ten minutes.
constexpr int kUploadRetries = 33;
constexpr absl::Duration kFirstUploadWait = absl::Seconds(1);
constexpr absl::Duration kMaxUploadWait = absl::Seconds(20);

// Returns true if the rows of an output have the same shape in all requests.
bool HasOneRowShape(const std::vector<ScoredRequest>& scored, size_t output) {
  const std::vector<int64_t>& first = scored.front().result.outputs[output].shape;
  return std::ranges::all_of(scored, [&](const ScoredRequest& request) {
    const std::vector<int64_t>& shape = request.result.outputs[output].shape;
    return std::equal(first.begin() + 1, first.end(), shape.begin() + 1, shape.end());
  });
}

// Returns an output of all `rows` rows, in order. If their shapes differ, which only an output that
// is not written may have, returns the pieces of all requests as they are.
absl::StatusOr<GatheredTensor> JoinOutput(const std::vector<ScoredRequest>& scored, size_t output,
                                          int64_t rows) {
  GatheredTensor whole = scored.front().result.outputs[output];
  whole.pieces.clear();
  whole.shape.front() = rows;
  whole.bytes = 0;
  for (const ScoredRequest& request : scored) {
    whole.bytes += request.result.outputs[output].bytes;
  }
  if (!HasOneRowShape(scored, output)) {
    for (const ScoredRequest& request : scored) {
      std::ranges::copy(request.result.outputs[output].pieces, std::back_inserter(whole.pieces));
    }
    return whole;
  }
  const size_t row_bytes = whole.bytes / static_cast<size_t>(rows);
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(whole.bytes));
  for (const ScoredRequest& request : scored) {
    auto position = request.positions.begin();
    for (const HostTensor& piece : request.result.outputs[output].pieces) {
      const auto* row = static_cast<const char*>(piece.data);
      for (int64_t r = 0; r < piece.rows(); ++r, row += row_bytes) {
        std::memcpy(memory.get() + static_cast<size_t>(*position++) * row_bytes, row, row_bytes);
      }
    }
  }
  whole.pieces = {{whole.name, whole.type, whole.shape, memory.get(), whole.bytes, memory}};
  return whole;
}

// Returns the result of all `rows` rows, in order.
absl::StatusOr<InferenceResult> JoinResults(std::vector<ScoredRequest> scored, int64_t rows) {
  if (scored.front().positions.empty()) {
    return std::move(scored.front().result);
  }
  InferenceResult joined;
  joined.version = scored.front().result.version;
  for (size_t output = 0; output < scored.front().result.outputs.size(); ++output) {
    BRAID_ASSIGN_OR_RETURN(GatheredTensor whole, JoinOutput(scored, output, rows));
    joined.outputs.push_back(std::move(whole));
  }
  return joined;
}

}  // namespace

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
  BRAID_ASSIGN_OR_RETURN(memory_.output, CloseOutput(context));
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
  started_ = absl::Now();
  EarlySaves early_saves(crashed_, absl::Now());
  while (context->stop() == JobStop::kNone) {
    BRAID_RETURN_IF_ERROR(data_check_.Run([this] { return input_->CheckUnchanged(); }));
    if (progress_.rows > first_row && early_saves.Due(absl::Now())) {
      BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->FinishPart());
      BRAID_RETURN_IF_ERROR(SetDurable(context, durable));
    }
    const int64_t request_rows = model_->request_rows();
    absl::StatusOr<std::optional<InputRows>> read =
        stream->Next(request_rows, WindowRows(request_rows));
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
    progress_.wait_seconds += absl::ToDoubleSeconds(rows->waited);
    BRAID_RETURN_IF_ERROR(Send(context, *std::move(rows), &requests));
  }
  while (!requests.empty()) {
    BRAID_RETURN_IF_ERROR(Collect(context, &requests));
  }
  return Stop(context);
}

int64_t InferenceJob::WindowRows(int64_t request_rows) const {
  if (!model_->independent_rows() || scored_rows_ == 0) {
    return request_rows;
  }
  // The clock may have been set back.
  const absl::Duration elapsed = std::max(absl::Now() - started_, absl::Nanoseconds(1));
  const double limit =
      std::min({static_cast<double>(kWindowRequests * request_rows),
                static_cast<double>(kMaxWindowBytes) / static_cast<double>(output_row_bytes_),
                static_cast<double>(scored_rows_) * absl::FDivDuration(kMaxWindowTime, elapsed)});
  return std::max(request_rows, static_cast<int64_t>(limit));
}

absl::Status InferenceJob::Send(JobContext* context, InputRows rows, Requests* requests) {
  std::vector<InputRows::Request> unsent = std::exchange(rows.requests, {});
  const auto window = std::make_shared<Window>();
  window->rows = std::move(rows);
  window->waiting = unsent.size();
  for (InputRows::Request& request : unsent) {
    while (requests->size() >= model_->max_in_flight()) {
      BRAID_RETURN_IF_ERROR(Collect(context, requests));
    }
    if (context->stop() != JobStop::kNone) {
      break;
    }
    const int64_t count = request.rows();
    model_->Infer(std::move(request.inputs), count,
                  requests->Push({window, std::move(request.positions)}));
  }
  return absl::OkStatus();
}

absl::Status InferenceJob::Collect(JobContext* context, Requests* requests) {
  Requests::Ended ended = requests->Pop();
  Window& window = *ended.context.window;
  const InputRows& rows = window.rows;
  if (!ended.result.ok()) {
    return absl::Status(
        ended.result.status().code(),
        absl::StrCat(ended.context.positions.empty() ? "rows " : "some of the rows ", rows.first,
                     " to ", rows.end() - 1, ": ", ended.result.status().message()));
  }
  const int64_t scored = ended.context.positions.empty()
                             ? rows.count
                             : static_cast<int64_t>(ended.context.positions.size());
  size_t bytes = 0;
  for (const GatheredTensor& output : ended.result->outputs) {
    bytes += output.bytes;
  }
  scored_rows_ += scored;
  output_row_bytes_ = std::max(output_row_bytes_, bytes / static_cast<size_t>(scored));
  window.scored.push_back({std::move(ended.context.positions), *std::move(ended.result)});
  if (--window.waiting > 0) {
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const InferenceResult result,
                         JoinResults(std::move(window.scored), rows.count));
  BRAID_RETURN_IF_ERROR(AddSkipped(context, rows));
  BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->Write(rows, result));
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
  if (context->stop() != JobStop::kCancel) {
    BRAID_ASSIGN_OR_RETURN(const int64_t durable, output_->FinishPart());
    BRAID_RETURN_IF_ERROR(SetDurable(context, durable));
  }
  return absl::CancelledError(absl::StrCat("stopped at row ", progress_.rows));
}

absl::StatusOr<std::string> InferenceJob::CloseOutput(JobContext* context) {
  BRAID_ASSIGN_OR_RETURN(const std::string path, output_->Close());
  absl::StatusOr<std::string> uploaded = output_->Upload();
  absl::Duration wait = kFirstUploadWait;
  for (int retry = 0; !uploaded.ok() && retry < kUploadRetries; ++retry) {
    if (retry == 0) {
      context->AddLog(
          JobLogLevel::kWarning,
          absl::StrCat(uploaded.status().message(), "; the job tries again for about 10 minutes"));
    }
    context->WaitForStop(wait);
    if (context->stop() != JobStop::kNone) {
      return Stop(context);
    }
    wait = std::min(2 * wait, kMaxUploadWait);
    uploaded = output_->Upload();
  }
  if (!uploaded.ok()) {
    upload_failed_ = true;
    return absl::Status(uploaded.status().code(),
                        absl::StrCat(uploaded.status().message(), "; the output is in '", path,
                                     "' on the server until the job's record is removed"));
  }
  return uploaded;
}

void InferenceJob::CleanUp() {
  if (!upload_failed_) {
    output_->Discard();
  }
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
