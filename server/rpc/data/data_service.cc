#include "server/rpc/data/data_service.h"

#include <utility>

#include "server/rpc/data/data_messages.h"

namespace braid {
DataService::DataService(DataDirectories directories, const RpcContext& rpc)
    : directories_(std::move(directories)), rpc_(rpc), thread_("data") {}

grpc::ServerUnaryReactor* DataService::GetDataset(grpc::CallbackServerContext* context,
                                                  const braid::v1::GetDatasetRequest* request,
                                                  braid::v1::GetDatasetResponse* response) {
  return HandleUnaryOn(&thread_, rpc_, context, "GetDataset", request, response,
                       [this](const auto& asked, auto* reply, UnaryCall&) {
                         return DescribeDataset(directories_, asked, reply);
                       });
}

grpc::ServerUnaryReactor* DataService::ListDatasets(grpc::CallbackServerContext* context,
                                                    const braid::v1::ListDatasetsRequest* request,
                                                    braid::v1::ListDatasetsResponse* response) {
  return HandleUnaryOn(&thread_, rpc_, context, "ListDatasets", request, response,
                       [this](const auto& asked, auto* reply, UnaryCall&) {
                         return braid::ListDatasets(directories_, asked, reply);
                       });
}

grpc::ServerUnaryReactor* DataService::PreviewDataset(
    grpc::CallbackServerContext* context, const braid::v1::PreviewDatasetRequest* request,
    braid::v1::PreviewDatasetResponse* response) {
  return HandleUnaryOn(&thread_, rpc_, context, "PreviewDataset", request, response,
                       [this](const auto& asked, auto* reply, UnaryCall&) {
                         return braid::PreviewDataset(directories_, asked, reply);
                       });
}

}  // namespace braid
