#include "server/rpc/training/operation_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/server/transport.h"
#include "server/rpc/training/training_messages.h"

namespace braid {
namespace {

using braid::v1::StreamRequest;

// Limit of pending operations: one runs, one is ready, and more hide the network's latency.
constexpr size_t kMaxPending = 8;

}  // namespace

OperationStream::OperationStream(TrainerRegistry* trainers, const RpcContext& rpc,
                                 const grpc::CallbackServerContext& context)
    : trainers_(trainers),
      rpc_(rpc),
      self_(this),
      record_(rpc.metrics, "Stream"),
      caller_(rpc.access, context, "Stream") {
  const absl::MutexLock lock(&mu_);
  absl::Status allowed = caller_.CheckStart();
  if (allowed.ok()) {
    allowed = rpc_.streams->Add(self_, caller_.client());
  }
  if (!allowed.ok()) {
    End(allowed);
    return;
  }
  Advance();
}

void OperationStream::Advance() {
  if (ended_) {
    return;
  }
  if (!writing_ && !pending_.empty() && pending_.front()->done) {
    const Pending& first = *pending_.front();
    if (!first.status.ok()) {
      End(first.status);
      return;
    }
    writing_ = true;
    StartWrite(&first.reply);
  }
  if ((read_all_ || !close_status_.ok()) && pending_.empty()) {
    End(read_all_ ? absl::OkStatus() : close_status_);
    return;
  }
  if (!read_all_ && close_status_.ok() && reading_ == nullptr && pending_.size() < kMaxPending) {
    reading_ = std::make_shared<Pending>();
    StartRead(&reading_->request);
  }
}

void OperationStream::BeginClose(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  close_status_ = status;
  Advance();
}

void OperationStream::End(const absl::Status& status) {
  ended_ = true;
  caller_.Audit(status);
  Finish(record_.End(status, caller_, caller_.model()));
}

void OperationStream::OnReadDone(bool ok) {
  std::shared_ptr<Pending> received;
  {
    const absl::MutexLock lock(&mu_);
    if (!ok || ended_ || !close_status_.ok()) {
      reading_ = nullptr;
      read_all_ = !ok;
      Advance();
      return;
    }
    received = reading_;
    received->number = ++received_;
    absl::StatusOr<Ticket> ticket =
        rpc_.admission->Admit(received->request.ByteSizeLong(), caller_.client());
    if (ticket.ok()) {
      received->ticket = *std::move(ticket);
    } else {
      received->status = ticket.status();
      received->done = true;
      read_all_ = true;
    }
    pending_.push_back(received);
  }
  if (!received->done) {
    Submit(received);
  }
  const absl::MutexLock lock(&mu_);
  // Read the next operation only now, so that it cannot overtake this one.
  reading_ = nullptr;
  Advance();
}

void OperationStream::OnWriteDone(bool ok) {
  const absl::MutexLock lock(&mu_);
  writing_ = false;
  pending_.pop_front();
  if (!ok && !ended_) {
    End(absl::CancelledError("the client disconnected or cancelled the call"));
  }
  Advance();
}

void OperationStream::OnCancel() {
  const absl::MutexLock lock(&mu_);
  if (!ended_) {
    End(absl::CancelledError("the client disconnected or cancelled the call"));
  }
}

void OperationStream::SetReply(const std::shared_ptr<Pending>& pending, absl::Status status) {
  const absl::MutexLock lock(&mu_);
  pending->status = std::move(status);
  pending->done = true;
  if (pending->request.has_publish()) {
    AuditDetails details;
    if (pending->status.ok()) {
      details.emplace_back("version", pending->reply.publish().version());
    }
    caller_.AuditOperation("Publish", details, pending->status);
  }
  if (!pending->status.ok()) {
    *first_failed_number_ = std::min(first_failed_number_->load(), pending->number);
  }
  Advance();
}

template <typename Request, typename Reply>
void OperationStream::SubmitAs(const std::shared_ptr<Pending>& pending, const Request& request,
                               Reply* reply) {
  bool other = false;
  absl::Status allowed;
  {
    const absl::MutexLock lock(&mu_);
    allowed = caller_.Check(request);
    if (allowed.ok()) {
      allowed = CheckNotOwnedByJob(request.trainer());
    }
    if (trainer_.empty()) {
      trainer_ = request.trainer();
    }
    other = request.trainer() != trainer_;
  }
  if (!allowed.ok()) {
    SetReply(pending, std::move(allowed));
    return;
  }
  if (other) {
    SetReply(pending,
             InvalidField("trainer", absl::StrCat("'", Excerpt(request.trainer()),
                                                  "' differs from the stream's first operation")));
    return;
  }
  absl::StatusOr<Operation> operation = ReadOperation(request);
  if (!operation.ok()) {
    SetReply(pending, operation.status());
    return;
  }
  operation->dropped = [first_failed = first_failed_number_, number = pending->number] {
    return *first_failed < number;
  };
  bool with_chunks = false;
  if constexpr (requires { request.report_split(); }) {
    with_chunks = request.report_split();
  }
  trainers_->Submit(
      request.trainer(), *std::move(operation),
      [stream = self_, pending, reply, with_chunks](absl::StatusOr<OperationResult> result) {
        absl::Status status = result.status();
        if (result.ok()) {
          WriteReply(*result, with_chunks, reply);
          status = CheckReplySize(reply);
        }
        stream->SetReply(pending, std::move(status));
      });
}

void OperationStream::Submit(const std::shared_ptr<Pending>& pending) {
  const StreamRequest& request = pending->request;
  braid::v1::StreamResponse& reply = pending->reply;
  switch (request.operation_case()) {
    case StreamRequest::kStep:
      return SubmitAs(pending, request.step(), reply.mutable_step());
    case StreamRequest::kForwardBackward:
      return SubmitAs(pending, request.forward_backward(), reply.mutable_forward_backward());
    case StreamRequest::kOptimStep:
      return SubmitAs(pending, request.optim_step(), reply.mutable_optim_step());
    case StreamRequest::kForward:
      return SubmitAs(pending, request.forward(), reply.mutable_forward());
    case StreamRequest::kBackward:
      return SubmitAs(pending, request.backward(), reply.mutable_backward());
    case StreamRequest::kPublish:
      return SubmitAs(pending, request.publish(), reply.mutable_publish());
    case StreamRequest::OPERATION_NOT_SET:
      break;
  }
  SetReply(pending, InvalidField("operation", "missing (expected one operation)"));
}

}  // namespace braid
