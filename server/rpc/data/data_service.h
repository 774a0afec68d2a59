// braid.v1.DataService: describes the datasets on the server; stores and deletes uploaded ones.
#pragma once

#include "braid/v1/data.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/data/open_data_source.h"
#include "server/datasets/dataset_store.h"
#include "server/jobs/jobs.h"
#include "server/rpc/call.h"
#include "server/rpc/data/put_dataset_stream.h"

namespace braid {

// Thread-safe.
class DataService final : public braid::v1::DataService::CallbackService {
 public:
  // The pointers, also those in `rpc`, outlive the service. store: null for no uploads.
  DataService(DataDirectories directories, DatasetStore* store, const Jobs* jobs,
              const RpcContext& rpc);

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* GetDataset(Context* context, const braid::v1::GetDatasetRequest* request,
                      braid::v1::GetDatasetResponse* response) override;
  Reactor* ListDatasets(Context* context, const braid::v1::ListDatasetsRequest* request,
                        braid::v1::ListDatasetsResponse* response) override;
  Reactor* PreviewDataset(Context* context, const braid::v1::PreviewDatasetRequest* request,
                          braid::v1::PreviewDatasetResponse* response) override;
  Reactor* StartDatasetUpload(Context* context, const braid::v1::StartDatasetUploadRequest* request,
                              braid::v1::StartDatasetUploadResponse* response) override;
  grpc::ServerReadReactor<braid::v1::PutDatasetRequest>* PutDataset(
      Context* context, braid::v1::PutDatasetResponse* response) override;
  Reactor* DeleteDataset(Context* context, const braid::v1::DeleteDatasetRequest* request,
                         braid::v1::DeleteDatasetResponse* response) override;

 private:
  absl::Status StartUpload(const braid::v1::StartDatasetUploadRequest& request,
                           braid::v1::StartDatasetUploadResponse* response) const;
  absl::Status Delete(const std::string& dataset) const;

  const DataDirectories directories_;
  const Jobs* const jobs_;
  const RpcContext rpc_;
  const PutDatasetContext uploads_;

  // They read and write files, because gRPC's threads must not block. Last members: joined first.
  TaskThread thread_{"data"};
  TaskThread changes_{"dataset changes"};
  TaskThread files_{"dataset files"};  // its tasks post to `changes_`
};

}  // namespace braid
