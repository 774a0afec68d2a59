#include "server/rpc/upload_stream.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {

void UploadStream::OnRequest() {
  if (const absl::Status status = Check(); !status.ok()) {
    Fail(status);
    return;
  }
  context_.files->Post([this, alive = self()] {
    if (const absl::Status status = Write(); status.ok()) {
      Next();
    } else {
      Fail(status);
    }
  });
}

void UploadStream::OnLast() {
  if (const absl::Status status = CheckLast(); !status.ok()) {
    EndLast(status);
    return;
  }
  context_.changes->Post([this, alive = self()] {
    if (const absl::Status status = Serve(); status.ok()) {
      End(status);
    } else {
      Fail(status);
    }
  });
}

void UploadStream::Fail(const absl::Status& status) {
  upload_.reset();
  End(status);
}

absl::Status UploadStream::Check() {
  if (upload_ == nullptr) {
    model_ = request().model();
  }
  BRAID_RETURN_IF_ERROR(Admit({.model = model_, .trainer = {}}));
  if (context_.max_bytes == 0) {
    return absl::FailedPreconditionError(
        "this server does not accept uploads (expected the server flag --allow_model_upload)");
  }
  if (const std::string& model = request().model(); !model.empty() && model != model_) {
    return InvalidField(
        "model", absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(model)),
                              "' in a later message (expected '", model_, "', as in the first)"));
  }
  if (complete_) {
    return InvalidField("complete", "set before the last message (expected only in the last one)");
  }
  bytes_ += static_cast<int64_t>(request().data().size());
  if (bytes_ > context_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("data: more than ", context_.max_bytes,
                                                     " bytes in one upload (--max_upload_bytes)"));
  }
  return absl::OkStatus();
}

absl::Status UploadStream::Write() {
  if (upload_ == nullptr) {
    BRAID_ASSIGN_OR_RETURN(upload_, context_.publisher->StartUpload(model_));
  }
  complete_ = request().complete();
  return upload_->Append(request().file(), request().data());
}

absl::Status UploadStream::CheckLast() {
  if (upload_ == nullptr) {
    return InvalidField("model", "missing (expected at least one message)");
  }
  // A client that ends early, or is killed, must not have half of its files served.
  if (!complete_) {
    return InvalidField("complete", "not set in any message (expected true in the last one)");
  }
  return Admit(0);
}

absl::Status UploadStream::Serve() {
  if (ended()) {
    return absl::CancelledError("the call has ended");
  }
  BRAID_ASSIGN_OR_RETURN(const UploadedVersion uploaded,
                         context_.publisher->Upload(model_, upload_.get()));
  response_->set_version(uploaded.version);
  response_->set_serving(uploaded.serving);
  RecordAudit("version", uploaded.version);
  return absl::OkStatus();
}

}  // namespace braid
