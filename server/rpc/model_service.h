// braid.v1.ModelService: the versions of models.
#pragma once

#include <cstdint>

#include "braid/v1/model.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/rpc/call.h"
#include "server/rpc/upload_stream.h"
#include "server/training/trainer/publisher.h"

namespace braid {

// Thread-safe. No method blocks: the service's threads read files and load versions.
class ModelService final : public braid::v1::ModelService::CallbackService {
 public:
  // All pointers outlive the service. max_upload_bytes: 0 for no uploads.
  ModelService(Publisher* publisher, int64_t max_upload_bytes, const RpcContext& rpc)
      : publisher_(publisher),
        rpc_(rpc),
        uploads_{publisher, max_upload_bytes, &files_, &changes_} {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* ListVersions(Context* context, const braid::v1::ListVersionsRequest* request,
                        braid::v1::ListVersionsResponse* response) override;
  Reactor* Pin(Context* context, const braid::v1::PinRequest* request,
               braid::v1::PinResponse* response) override;
  Reactor* Unpin(Context* context, const braid::v1::UnpinRequest* request,
                 braid::v1::UnpinResponse* response) override;
  Reactor* SetLabel(Context* context, const braid::v1::SetLabelRequest* request,
                    braid::v1::SetLabelResponse* response) override;
  Reactor* DeleteVersion(Context* context, const braid::v1::DeleteVersionRequest* request,
                         braid::v1::DeleteVersionResponse* response) override;
  Reactor* ReserveVersion(Context* context, const braid::v1::ReserveVersionRequest* request,
                          braid::v1::ReserveVersionResponse* response) override;
  grpc::ServerReadReactor<braid::v1::UploadVersionRequest>* UploadVersion(
      Context* context, braid::v1::UploadVersionResponse* response) override;

 private:
  Publisher* const publisher_;
  const RpcContext rpc_;
  const UploadContext uploads_;
  // Reads and writes files, without waiting for versions that are being loaded.
  TaskThread files_{"version files"};
  TaskThread changes_{"versions"};
};

}  // namespace braid
