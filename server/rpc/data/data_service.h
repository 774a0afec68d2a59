// braid.v1.DataService: describes the data sets on the server.
#pragma once

#include "braid/v1/data.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/data/open_data_source.h"
#include "server/rpc/call.h"

namespace braid {

// Thread-safe.
class DataService final : public braid::v1::DataService::CallbackService {
 public:
  // The pointers in `rpc` outlive the service.
  DataService(DataDirectories directories, const RpcContext& rpc);

  grpc::ServerUnaryReactor* GetDataset(grpc::CallbackServerContext* context,
                                       const braid::v1::GetDatasetRequest* request,
                                       braid::v1::GetDatasetResponse* response) override;
  grpc::ServerUnaryReactor* ListDatasets(grpc::CallbackServerContext* context,
                                         const braid::v1::ListDatasetsRequest* request,
                                         braid::v1::ListDatasetsResponse* response) override;
  grpc::ServerUnaryReactor* PreviewDataset(grpc::CallbackServerContext* context,
                                           const braid::v1::PreviewDatasetRequest* request,
                                           braid::v1::PreviewDatasetResponse* response) override;

 private:
  const DataDirectories directories_;
  const RpcContext rpc_;

  // Reads files, because gRPC's threads must not block. Last member: joined first.
  TaskThread thread_;
};

}  // namespace braid
