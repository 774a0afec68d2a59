// Stream: pipelined operations of one trainer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "braid/v1/training.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// One call. gRPC threads call the reactor methods; a thread of the trainer pool delivers the
// replies. Thread-safe; deletes itself when the call is over and no operation is left.
class OperationStream final
    : public grpc::ServerBidiReactor<braid::v1::StreamRequest, braid::v1::StreamResponse>,
      public OpenStream {
 public:
  OperationStream(TrainerRegistry* trainers, const RpcContext& rpc,
                  const grpc::CallbackServerContext& context);
  ~OperationStream() override { rpc_.streams->Remove(this); }

  void BeginClose(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }

 private:
  // A received operation whose reply is not written yet.
  struct Pending {
    braid::v1::StreamRequest request;  // the operation's tensors point into it
    Ticket ticket;
    braid::v1::StreamResponse reply;
    absl::Status status;
    bool done = false;
    int64_t number = 0;  // position in the stream
  };

  // Submits the operation of `pending` to its trainer.
  void Submit(const std::shared_ptr<Pending>& pending) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename Request, typename Reply>
  void SubmitAs(const std::shared_ptr<Pending>& pending, const Request& request, Reply* reply);
  void SetReply(const std::shared_ptr<Pending>& pending, absl::Status status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Starts the next read or write, or ends the call.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  TrainerRegistry* const trainers_;
  const RpcContext rpc_;

  // gRPC's reference, until OnDone(). Each operation that is not done holds another.
  std::shared_ptr<OperationStream> self_;

  absl::Mutex mu_;
  CallRecord record_ ABSL_GUARDED_BY(mu_);
  Caller caller_ ABSL_GUARDED_BY(mu_);
  // In order of arrival.
  std::deque<std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Pending> reading_ ABSL_GUARDED_BY(mu_);  // null: not reading
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
  // If not OK: stops reading, and ends with this status when pending_ is empty.
  absl::Status close_status_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::string trainer_ ABSL_GUARDED_BY(mu_);
  int64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  // Number of the first failed operation; later ones are not applied. Shared with the operations.
  const std::shared_ptr<std::atomic<int64_t>> first_failed_number_ =
      std::make_shared<std::atomic<int64_t>>(std::numeric_limits<int64_t>::max());
};

}  // namespace braid
