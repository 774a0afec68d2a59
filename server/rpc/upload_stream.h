// UploadVersion: writes the files of a stream, then serves them as a version.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "braid/v1/model.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/rpc/request_stream.h"
#include "server/training/trainer/publisher.h"

namespace braid {

// Shared by the uploads; everything it points to outlives them.
struct UploadContext {
  Publisher* publisher = nullptr;
  int64_t max_bytes = 0;          // of one upload; 0: no uploads
  TaskThread* files = nullptr;    // writes the files
  TaskThread* changes = nullptr;  // loads the version
};

// One call. Between two reads, a thread of the context works.
class UploadStream final : public RequestStream<braid::v1::UploadVersionRequest> {
 public:
  UploadStream(const UploadContext& context, const RpcContext& rpc,
               const grpc::CallbackServerContext& call, braid::v1::UploadVersionResponse* response)
      : RequestStream(rpc, call, "UploadVersion"), context_(context), response_(response) {
    Start();
  }

 private:
  void OnRequest() override;
  void OnLast() override;
  // Checks and admits the received message.
  absl::Status Check();
  // Writes the data of the received message.
  absl::Status Write();
  // Checks that the client has sent everything, and admits the load.
  absl::Status CheckLast();
  // Stores and serves the version.
  absl::Status Serve();
  // Ends the call with an error, after the files that were written are removed.
  void Fail(const absl::Status& status);

  const UploadContext& context_;
  braid::v1::UploadVersionResponse* const response_;

  std::string model_;                      // of the first message
  std::unique_ptr<VersionUpload> upload_;  // null until the first message
  int64_t bytes_ = 0;
  bool complete_ = false;  // by the last message
};

}  // namespace braid
