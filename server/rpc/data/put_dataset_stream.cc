#include "server/rpc/data/put_dataset_stream.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

using braid::v1::PutDatasetResponse;

struct OutcomeName {
  PutDatasetResponse::Result result = PutDatasetResponse::RESULT_UNSPECIFIED;
  const char* label = "";  // of the metric
};

OutcomeName NameOf(DatasetStore::Outcome outcome) {
  switch (outcome) {
    case DatasetStore::Outcome::kStored:
      return {PutDatasetResponse::RESULT_STORED, "stored"};
    case DatasetStore::Outcome::kReplaced:
      return {PutDatasetResponse::RESULT_REPLACED, "replaced"};
    case DatasetStore::Outcome::kUnchanged:
      return {PutDatasetResponse::RESULT_UNCHANGED, "unchanged"};
  }
  return {};
}

}  // namespace

absl::Status CheckAcceptsDatasets(const DatasetStore* store) {
  return store != nullptr ? absl::OkStatus()
                          : absl::FailedPreconditionError(
                                "this server does not accept datasets (expected the server flag "
                                "--dataset_root)");
}

std::string DatasetPath(const std::string& place, const std::string& data_root) {
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(data_root, error);
  const std::string relative =
      error ? "" : std::filesystem::path(place).lexically_relative(root).string();
  return relative.empty() || *std::filesystem::path(relative).begin() == ".." ? place : relative;
}

std::string DatasetName(const std::string& path, const std::string& root,
                        const std::string& data_root) {
  std::string name(absl::StripSuffix(path, "/"));
  if (!absl::StrContains(name, '/')) {
    return name;
  }
  const std::filesystem::path place = (std::filesystem::path(data_root) / name).lexically_normal();
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(place.parent_path(), error);
  return error || folder != root ? path : place.filename().string();
}

void PutDatasetStream::OnRequest() {
  if (const absl::Status status = Check(); !status.ok()) {
    End(status);
  } else if (upload_ != nullptr) {
    context_.files->Post([this, alive = self()] { Write(); });
  } else {
    context_.changes->Post([this, alive = self()] {
      if (const absl::Status opened = Open(); opened.ok()) {
        Write();
      } else {
        End(opened);
      }
    });
  }
}

void PutDatasetStream::OnLast() {
  if (upload_ == nullptr) {
    EndLast(InvalidField("upload", "missing (expected at least one message)"));
    return;
  }
  // Also after the connection broke: the client continues the upload.
  absl::Status status = upload_->CheckComplete();
  if (status.ok()) {
    status = Admit(0);
  }
  if (!status.ok()) {
    EndLast(status);
    return;
  }
  context_.changes->Post([this, alive = self()] {
    if (ended()) {
      return;
    }
    if (const absl::Status stored = Store(); stored.ok()) {
      End(stored);
    } else {
      Fail(stored);
    }
  });
}

absl::Status PutDatasetStream::Check() {
  BRAID_RETURN_IF_ERROR(Admit(Names()));
  BRAID_RETURN_IF_ERROR(CheckAcceptsDatasets(context_.store));
  const std::string& id = request().upload();
  if (upload_ == nullptr) {
    id_ = id;
  } else if (!id.empty() && id != id_) {
    return InvalidField("upload", absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(id)),
                                               "' in a later message (expected '", id_,
                                               "', as in the "
                                               "first)"));
  }
  return absl::OkStatus();
}

absl::Status PutDatasetStream::Open() {
  BRAID_ASSIGN_OR_RETURN(upload_, context_.store->Continue(id_));
  RecordAudit("dataset", upload_->manifest().dataset);
  return absl::OkStatus();
}

void PutDatasetStream::Write() {
  const std::string& data = request().data();
  absl::Status status;
  if (!data.empty()) {
    status = upload_->Append(request().file(), request().offset(), data);
  }
  if (status.ok()) {
    Next();
  } else {
    Fail(status);
  }
}

absl::Status PutDatasetStream::Store() {
  BRAID_ASSIGN_OR_RETURN(const DatasetStore::Outcome outcome,
                         context_.store->Commit(upload_.get()));
  const OutcomeName name = NameOf(outcome);
  response_->set_result(name.result);
  BRAID_ASSIGN_OR_RETURN(const std::string place,
                         context_.store->Find(upload_->manifest().dataset));
  response_->set_path(DatasetPath(place, context_.data_root));
  context_.metrics->CountDatasetUpload(name.label);
  return absl::OkStatus();
}

void PutDatasetStream::Fail(const absl::Status& status) {
  if (!absl::IsAborted(status)) {  // another call continues the upload
    context_.metrics->CountDatasetUpload("failed");
  }
  if (!absl::IsResourceExhausted(status)) {
    End(status);
    return;
  }
  context_.changes->Post([this, status, alive = self()] {
    context_.store->Discard(upload_.get());
    End(status);
  });
}

}  // namespace braid
