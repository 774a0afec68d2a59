// Stream: operations of one trainer, one after the other, while the next are received.
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

// gRPC calls OnReadDone() and OnWriteDone() from its threads, the trainer's thread answers. Deletes
// itself when the call is over and no operation has it any more.
class OperationStream final
    : public grpc::ServerBidiReactor<braid::v1::StreamRequest, braid::v1::StreamResponse>,
      public OpenStream {
 public:
  OperationStream(TrainerRegistry* trainers, const RpcContext& rpc,
                  const grpc::CallbackServerContext& context);
  ~OperationStream() override { rpc_.streams->Remove(this); }

  void Leave(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }

 private:
  // An operation that was received and is not answered yet.
  struct Pending {
    braid::v1::StreamRequest request;  // the operation's tensors point into it
    Ticket ticket;
    braid::v1::StreamResponse reply;
    absl::Status status;
    bool answered = false;
    int64_t number = 0;  // counted in the stream
  };

  // Hands the operation of `pending` to its trainer.
  void Submit(const std::shared_ptr<Pending>& pending) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename Request, typename Reply>
  void SubmitAs(const std::shared_ptr<Pending>& pending, const Request& request, Reply* reply);
  void Answer(const std::shared_ptr<Pending>& pending, absl::Status status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Reads, writes or ends the call, as far as that can be done now.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  TrainerRegistry* const trainers_;
  const RpcContext rpc_;

  // What keeps the stream alive: gRPC, until OnDone(); each operation that is not answered has
  // another.
  std::shared_ptr<OperationStream> self_;

  absl::Mutex mu_;
  CallRecord record_ ABSL_GUARDED_BY(mu_);
  Caller caller_ ABSL_GUARDED_BY(mu_);
  // In the order of their requests.
  std::deque<std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Pending> reading_ ABSL_GUARDED_BY(mu_);  // null: no read is under way
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_all_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status leaves_ ABSL_GUARDED_BY(mu_);  // an error: with which, once nothing is pending
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::string trainer_ ABSL_GUARDED_BY(mu_);
  int64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  // The number of the first operation that has failed: those behind it are not applied. Shared with
  // them.
  const std::shared_ptr<std::atomic<int64_t>> failed_ =
      std::make_shared<std::atomic<int64_t>>(std::numeric_limits<int64_t>::max());
};

}  // namespace braid
