// UploadVersion: writes the files of a stream, then serves them as a version.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "braid/v1/model.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/rpc/call.h"
#include "server/training/trainer/publisher.h"

namespace braid {

// Shared by the uploads; everything it points to outlives them.
struct UploadContext {
  Publisher* publisher = nullptr;
  bool allowed = false;
  TaskThread* files = nullptr;    // writes the files
  TaskThread* changes = nullptr;  // loads the version
};

// One call. gRPC calls the reactions one at a time; between two reads, a thread of the context
// works. Deletes itself when the call is over and no work is in progress.
class UploadStream final : public grpc::ServerReadReactor<braid::v1::UploadVersionRequest>,
                           public OpenStream {
 public:
  UploadStream(const UploadContext& context, const RpcContext& rpc,
               const grpc::CallbackServerContext& call, braid::v1::UploadVersionResponse* response);
  ~UploadStream() override { rpc_.streams->Remove(this); }

  void Leave(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }

 private:
  // Counts `bytes` as in flight.
  absl::Status Admit(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Checks and admits the received message.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the data of the received message.
  absl::Status Write();
  // Stores and serves the version.
  absl::Status Serve() ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the next message, or ends the call after Leave().
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call, once.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UploadContext& context_;
  const RpcContext rpc_;
  braid::v1::UploadVersionResponse* const response_;

  // gRPC's reference, until OnDone(). Work in progress holds another.
  std::shared_ptr<UploadStream> self_;
  CallRecord record_;
  Ticket ticket_;
  braid::v1::UploadVersionRequest request_;
  std::string model_;                      // of the first message
  std::unique_ptr<VersionUpload> upload_;  // null until the first message
  bool complete_ = false;                  // by the last message

  absl::Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // false: work is in progress
  // If not OK: ends with this status after the work in progress.
  absl::Status leave_status_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Caller caller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
