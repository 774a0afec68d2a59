#include "server/rpc/upload_stream.h"

#include <utility>

#include "server/base/status.h"
#include "server/rpc/auth/string_limits.h"

namespace braid {

UploadStream::UploadStream(const UploadContext& context, const RpcContext& rpc,
                           const grpc::CallbackServerContext& call,
                           braid::v1::UploadVersionResponse* response)
    : context_(context),
      rpc_(rpc),
      response_(response),
      self_(this),
      record_(rpc.metrics, "UploadVersion"),
      caller_(rpc.access, call, "UploadVersion") {
  const absl::MutexLock lock(&mu_);
  absl::Status allowed = caller_.CheckStart();
  if (allowed.ok()) {
    allowed = rpc_.streams->Add(self_, caller_.client());
  }
  if (!allowed.ok()) {
    EndLocked(allowed);
    return;
  }
  Read();
}

void UploadStream::Read() {
  if (!leave_status_.ok()) {
    EndLocked(leave_status_);
  } else if (!ended_) {
    reading_ = true;
    StartRead(&request_);
  }
}

void UploadStream::Leave(const absl::Status& why) {
  const absl::MutexLock lock(&mu_);
  leave_status_ = why;
  if (reading_) {
    EndLocked(why);
  }
}

void UploadStream::OnReadDone(bool ok) {
  {
    const absl::MutexLock lock(&mu_);
    reading_ = false;
    if (ended_) {
      return;
    }
  }
  if (!ok) {
    if (upload_ == nullptr) {
      End(InvalidField("model", "missing (expected at least one message)"));
      return;
    }
    // A client that ends early, or is killed, must not have half of its files served.
    if (!complete_) {
      End(InvalidField("complete", "not set in any message (expected true in the last one)"));
      return;
    }
    if (const absl::Status status = Admit(0); !status.ok()) {
      End(status);
      return;
    }
    context_.changes->Post([stream = self_] { stream->End(stream->Serve()); });
    return;
  }
  if (const absl::Status status = Check(); !status.ok()) {
    End(status);
    return;
  }
  context_.files->Post([stream = self_] {
    if (const absl::Status status = stream->Write(); !status.ok()) {
      stream->End(status);
      return;
    }
    stream->ticket_ = Ticket();  // waiting for the client does not count as in flight
    const absl::MutexLock lock(&stream->mu_);
    stream->Read();
  });
}

absl::Status UploadStream::Admit(size_t bytes) {
  std::string client;
  {
    const absl::MutexLock lock(&mu_);
    client = caller_.client();
  }
  BRAID_ASSIGN_OR_RETURN(ticket_, rpc_.admission->Admit(bytes, std::move(client)));
  return absl::OkStatus();
}

absl::Status UploadStream::Check() {
  {
    const absl::MutexLock lock(&mu_);
    // Only the first message names the model.
    if (upload_ == nullptr) {
      model_ = request_.model();
    }
    BRAID_RETURN_IF_ERROR(caller_.CheckNames({.model = model_, .trainer = {}}));
  }
  BRAID_RETURN_IF_ERROR(CheckStrings(request_));
  if (!context_.allowed) {
    return absl::FailedPreconditionError(
        "this server does not accept uploads (expected the server flag --allow_model_upload)");
  }
  return Admit(request_.ByteSizeLong());
}

absl::Status UploadStream::Write() {
  if (upload_ == nullptr) {
    BRAID_ASSIGN_OR_RETURN(upload_, context_.publisher->StartUpload(model_));
  }
  if (complete_) {
    return InvalidField("complete", "set before the last message (expected only in the last one)");
  }
  complete_ = request_.complete();
  return upload_->Append(request_.file(), request_.data());
}

absl::Status UploadStream::Serve() {
  {
    const absl::MutexLock lock(&mu_);
    if (ended_) {
      return absl::CancelledError("the call has ended");
    }
  }
  BRAID_ASSIGN_OR_RETURN(const UploadedVersion uploaded,
                         context_.publisher->Upload(model_, upload_.get()));
  response_->set_version(uploaded.version);
  response_->set_serving(uploaded.serving);
  const absl::MutexLock lock(&mu_);
  caller_.RecordAudit("version", uploaded.version);
  return absl::OkStatus();
}

void UploadStream::End(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  EndLocked(status);
}

void UploadStream::EndLocked(const absl::Status& status) {
  if (!std::exchange(ended_, true)) {
    caller_.Audit(status);
    Finish(record_.End(status, caller_, caller_.model()));
  }
}

void UploadStream::OnCancel() {
  End(absl::CancelledError("the client disconnected or cancelled the call"));
}

}  // namespace braid
