#include "server/rpc/inference/infer_stream.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/inference/parameter.h"
#include "server/rpc/inference/shared_memory.h"

namespace braid {
namespace {

// Limits of pending requests: enough to keep all workers busy over a network.
constexpr size_t kMaxPending = 64;
constexpr size_t kMaxPendingBytes = size_t{256} << 20;

constexpr char kMore[] = "braid_more";
constexpr char kFinal[] = "triton_final_response";

bool WantsErrorsAsStatus(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("triton_grpc_error");
  return found != context.client_metadata().end() && found->second == "true";
}

}  // namespace

InferStream::InferStream(const InferContext& infer, const RpcContext& rpc,
                         const grpc::CallbackServerContext* context)
    : infer_(infer),
      rpc_(rpc),
      deadline_(DeadlineOf(context->deadline())),
      errors_end_call_(WantsErrorsAsStatus(*context)),
      self_(this),
      caller_(rpc.access, *context, "ModelStreamInfer"),
      record_(rpc.metrics, "ModelStreamInfer") {
  absl::Status allowed = caller_.CheckStart();
  if (allowed.ok()) {
    allowed = rpc_.streams->Add(self_, caller_.client());
  }
  const absl::MutexLock lock(&mu_);
  if (!allowed.ok()) {
    End(allowed);
    return;
  }
  Advance();
}

void InferStream::Advance() {
  if (ended_) {
    return;
  }
  if (!writing_ && !pending_.empty() && pending_.front()->done) {
    WriteFirst();
  }
  if (ended_) {
    return;
  }
  if ((read_all_ || !close_status_.ok()) && pending_.empty()) {
    End(read_all_ ? absl::OkStatus() : close_status_);
    return;
  }
  if (!read_all_ && close_status_.ok() && reading_ == nullptr && pending_.size() < kMaxPending &&
      bytes_ < kMaxPendingBytes) {
    reading_ = std::make_shared<Pending>();
    StartRead(&reading_->request);
  }
}

void InferStream::BeginClose(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  close_status_ = status;
  Advance();
}

void InferStream::WriteFirst() {
  Pending& first = *pending_.front();
  if (first.status.ok() && first.batch == failed_batch_) {
    first.status = failure_;
  }
  inference::ModelInferResponse* const response = first.reply.mutable_infer_response();
  if (!first.status.ok()) {
    if (errors_end_call_) {
      Record(&first, first.status);
      End(first.status);
      return;
    }
    failed_batch_ = first.batch;
    failure_ = first.status;
    response->Clear();
    response->set_id(first.request.id());
    response->set_model_name(first.request.model_name());
    response->set_model_version(first.request.model_version());
    first.reply.set_error_message(ToGrpcStatus(first.status).error_message());
  }
  auto& parameters = *response->mutable_parameters();
  parameters[kFinal].set_bool_param(true);
  if (first.more) {
    parameters[kMore].set_bool_param(true);
  }
  Record(&first, first.status);
  writing_ = true;
  StartWrite(&first.reply);
}

void InferStream::Record(Pending* pending, const absl::Status& status) {
  if (!pending->record) {
    return;
  }
  // A worker may still write the facts of a request that is not done.
  if (pending->done) {
    pending->record->facts() = std::move(pending->facts);
  }
  pending->record->End(status, caller_, pending->model);
  pending->record.reset();
}

void InferStream::End(const absl::Status& status) {
  ended_ = true;
  if (pending_.empty() && !status.ok()) {
    Finish(record_.End(status, caller_, ""));
    return;
  }
  for (const auto& pending : pending_) {
    Record(pending.get(), status);
  }
  Finish(ToGrpcStatus(status));
}

void InferStream::CancelRest() {
  std::vector<std::shared_ptr<Cancellation>> waiting;
  {
    const absl::MutexLock lock(&mu_);
    if (!ended_ || std::exchange(rest_cancelled_, true)) {
      return;
    }
    for (const auto& pending : pending_) {
      waiting.push_back(pending->cancellation);
    }
  }
  for (const auto& cancellation : waiting) {
    cancellation->Cancel();
  }
}

void InferStream::OnReadDone(bool ok) {
  std::shared_ptr<Pending> received;
  absl::Status status;
  {
    const absl::MutexLock lock(&mu_);
    if (!ok || ended_ || !close_status_.ok()) {
      reading_ = nullptr;
      read_all_ = !ok;
      Advance();
      return;
    }
    received = reading_;
    received->record.emplace(rpc_.metrics, "ModelStreamInfer");
    RecordRequestId(received->request, &received->facts);
    received->record->facts() = received->facts;
    received->bytes = received->request.ByteSizeLong();
    status = caller_.Check(received->request);
    if (status.ok()) {
      received->model = caller_.model();
    }
    bytes_ += received->bytes;
    pending_.push_back(received);
  }
  if (status.ok()) {
    status = Submit(received);
  }
  if (!status.ok()) {
    SetReply(received, status);
  }
  const absl::MutexLock lock(&mu_);
  // Read the next message only now, so that it cannot overtake this one.
  reading_ = nullptr;
  Advance();
}

absl::Status InferStream::Submit(const std::shared_ptr<Pending>& pending) {
  BRAID_ASSIGN_OR_RETURN(auto queue, QueueFor(pending.get()));
  const InferContext allowed = ForCaller(infer_, caller_);
  const size_t shared = SharedInputBytes(allowed.regions, pending->request);
  BRAID_ASSIGN_OR_RETURN(pending->ticket,
                         rpc_.admission->Admit(pending->bytes + shared, caller_.client()));
  BRAID_RETURN_IF_ERROR(CheckSharedInputs(shared, rpc_.admission->max_bytes()));
  BRAID_RETURN_IF_ERROR(
      SubmitRequest(allowed, std::move(queue),
                    {.request = &pending->request,
                     .response = pending->reply.mutable_infer_response(),
                     .facts = &pending->facts,
                     .ticket = &pending->ticket,
                     .deadline = deadline_,
                     .cancellation = pending->cancellation,
                     .done = [stream = self_, pending](const absl::Status& status) {
                       stream->SetReply(pending, status);
                     }}));
  bool ended = false;
  {
    const absl::MutexLock lock(&mu_);
    if (pending->record) {
      pending->record->facts().rows = pending->facts.rows;
    }
    ended = ended_;
  }
  if (ended) {
    pending->cancellation->Cancel();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RequestQueue>> InferStream::QueueFor(Pending* pending) {
  const inference::ModelInferRequest& request = pending->request;
  const absl::StatusOr<bool> more = ReadBoolOr(request.parameters(), "", kMore, false);
  const std::shared_ptr<RequestQueue> before = std::exchange(batch_queue_, nullptr);
  if (before == nullptr) {
    ++batch_;
  }
  pending->batch = batch_;
  BRAID_RETURN_IF_ERROR(more.status());
  pending->more = *more;
  std::shared_ptr<RequestQueue> queue = before;
  if (before == nullptr) {
    BRAID_ASSIGN_OR_RETURN(queue, FindQueue(*infer_.models, request));
    batch_model_ = request.model_name();
    batch_version_ = request.model_version();
  } else if (request.model_name() != batch_model_ || request.model_version() != batch_version_) {
    return InvalidField("model_name",
                        absl::StrCat("'", Excerpt(request.model_name()), "' version '",
                                     Excerpt(request.model_version()),
                                     "' differs from the first message of the batch (expected '",
                                     batch_model_, "' version '", batch_version_,
                                     "', because the message before set ", kMore, ")"));
  }
  if (pending->more && !queue->config().has_independent_rows()) {
    return InvalidField(ParameterField("", kMore),
                        absl::StrCat("true for model '", batch_model_,
                                     "', which does not merge requests (send each batch in one "
                                     "request)"));
  }
  if (pending->more) {
    batch_queue_ = queue;
  }
  return queue;
}

void InferStream::SetReply(const std::shared_ptr<Pending>& pending, const absl::Status& status) {
  {
    const absl::MutexLock lock(&mu_);
    pending->status = status;
    pending->done = true;
    const size_t reply_bytes = pending->reply.ByteSizeLong();
    pending->bytes += reply_bytes;
    bytes_ += reply_bytes;
    Advance();
  }
  CancelRest();
}

void InferStream::OnWriteDone(bool ok) {
  {
    const absl::MutexLock lock(&mu_);
    writing_ = false;
    bytes_ -= pending_.front()->bytes;
    pending_.pop_front();
    if (!ok && !ended_) {
      End(absl::CancelledError("the client disconnected or cancelled the stream"));
    }
    Advance();
  }
  CancelRest();
}

void InferStream::OnCancel() {
  {
    const absl::MutexLock lock(&mu_);
    if (!ended_) {
      End(absl::CancelledError("the client disconnected or cancelled the stream"));
    }
  }
  CancelRest();
}

}  // namespace braid
