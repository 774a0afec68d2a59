#include "server/rpc/data/data_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/abbreviate_names.h"
#include "server/jobs/data_users.h"
#include "server/rpc/data/data_messages.h"
#include "server/rpc/jobs/stored_job_spec.h"

namespace braid {

DataService::DataService(DataDirectories directories, DatasetStore* store, const Jobs* jobs,
                         const RpcContext& rpc)
    : directories_(std::move(directories)),
      jobs_(jobs),
      rpc_(rpc),
      uploads_{store, rpc.metrics, directories_.roots.empty() ? "" : directories_.roots.front(),
               &files_, &changes_} {}

DataService::Reactor* DataService::GetDataset(Context* context,
                                              const braid::v1::GetDatasetRequest* request,
                                              braid::v1::GetDatasetResponse* response) {
  return HandleUnaryOn(&thread_, rpc_, context, "GetDataset", request, response,
                       [this](const auto& message, auto* reply, UnaryCall&) {
                         return DescribeDataset(directories_, message, reply);
                       });
}

DataService::Reactor* DataService::ListDatasets(Context* context,
                                                const braid::v1::ListDatasetsRequest* request,
                                                braid::v1::ListDatasetsResponse* response) {
  return HandleUnaryOn(&thread_, rpc_, context, "ListDatasets", request, response,
                       [this](const auto& message, auto* reply, UnaryCall&) {
                         return braid::ListDatasets(directories_, message, reply);
                       });
}

DataService::Reactor* DataService::PreviewDataset(Context* context,
                                                  const braid::v1::PreviewDatasetRequest* request,
                                                  braid::v1::PreviewDatasetResponse* response) {
  return HandleUnaryOn(&thread_, rpc_, context, "PreviewDataset", request, response,
                       [this](const auto& message, auto* reply, UnaryCall&) {
                         return braid::PreviewDataset(directories_, message, reply);
                       });
}

DataService::Reactor* DataService::StartDatasetUpload(
    Context* context, const braid::v1::StartDatasetUploadRequest* request,
    braid::v1::StartDatasetUploadResponse* response) {
  return HandleUnaryOn(
      &changes_, rpc_, context, "StartDatasetUpload", request, response,
      [this](const auto& message, auto* reply, UnaryCall&) { return StartUpload(message, reply); });
}

absl::Status DataService::StartUpload(const braid::v1::StartDatasetUploadRequest& request,
                                      braid::v1::StartDatasetUploadResponse* response) const {
  BRAID_RETURN_IF_ERROR(CheckAcceptsDatasets(uploads_.store));
  BRAID_ASSIGN_OR_RETURN(const DatasetManifest manifest, ReadManifest(request));
  BRAID_ASSIGN_OR_RETURN(const DatasetStore::Started started,
                         uploads_.store->Start(manifest, request.overwrite()));
  if (started.complete) {
    uploads_.metrics->CountDatasetUpload("unchanged");
  }
  response->set_complete(started.complete);
  response->set_upload(started.upload);
  response->mutable_received_bytes()->Add(started.received.begin(), started.received.end());
  response->set_path(
      DatasetPath(absl::StrCat(uploads_.store->root(), "/", manifest.dataset), uploads_.data_root));
  return absl::OkStatus();
}

grpc::ServerReadReactor<braid::v1::PutDatasetRequest>* DataService::PutDataset(
    Context* context, braid::v1::PutDatasetResponse* response) {
  return new PutDatasetStream(uploads_, rpc_, *context, response);  // deletes itself
}

DataService::Reactor* DataService::DeleteDataset(Context* context,
                                                 const braid::v1::DeleteDatasetRequest* request,
                                                 braid::v1::DeleteDatasetResponse* response) {
  return HandleUnaryOn(
      &changes_, rpc_, context, "DeleteDataset", request, response,
      [this](const auto& message, auto*, UnaryCall&) { return Delete(message.dataset()); });
}

absl::Status DataService::Delete(const std::string& dataset) const {
  BRAID_RETURN_IF_ERROR(CheckAcceptsDatasets(uploads_.store));
  const std::string name = DatasetName(dataset, uploads_.store->root(), uploads_.data_root);
  BRAID_ASSIGN_OR_RETURN(const std::string place, uploads_.store->Find(name));
  // Only jobs that were accepted before can read the dataset: others find that it is gone.
  if (jobs_->started()) {
    BRAID_ASSIGN_OR_RETURN(
        const std::vector<std::string> users,
        JobsReading(place, jobs_->store(), ReadStoredJobSpec, directories_.roots));
    if (!users.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "dataset: '", name, "' is read by jobs that have not ended: ", AbbreviateNames(users),
          " (cancel them first)"));
    }
  }
  return uploads_.store->Delete(name);
}

}  // namespace braid
