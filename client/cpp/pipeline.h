// Operations of a trainer on their way over the method Stream, through lost connections. Internal.
//
// One thread keeps a connection as long as there is something to send or to be replied; what it may
// send again, and from where, operation_log.h says. gRPC's threads send, and hand out the replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/handle.h"
#include "client/cpp/stream_call.h"

namespace braid::client {

// Thread-safe.
class Pipeline final : private StreamCall::Owner {
 public:
  struct Reply {
    v1::StreamResponse message;
    // What LostReply makes of a later one.
    bool lost = false;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<Reply>)>;

  // `handle` must outlive this object, which has it to itself. `depth`: of operations under way, at
  // least 1. `timeout`: in which something must be replied while operations are under way.
  Pipeline(Handle& handle, size_t depth, absl::Duration timeout);
  // Gives up what is under way.
  ~Pipeline() override;

  // Waits for room, then hands `operation` over. `done` is called once, in the order of the calls;
  // it must not call this object.
  void Submit(v1::StreamRequest operation, Done done);
  // As Handle's. What the pipeline failed with, if it has.
  absl::StatusOr<Handle::Moment> BringUp(absl::Time deadline);
  Handle::Seen seen();
  // Takes no more operations and waits for those under way. Returns what it failed with, if it did.
  absl::Status End();
  // Takes no more operations and ends what is under way.
  void GiveUp();

 private:
  struct Pending {
    int64_t sequence;
    Done done;
  };

  StreamCall::Next NextToSend() override;
  absl::Status TakeReply(v1::StreamResponse reply) override;
  void Over(const absl::Status& status) override;

  absl::Status Enqueue(v1::StreamRequest& operation, Done& done);
  absl::Status WaitForRoom(size_t bytes);
  absl::Status CheckOpen() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  int64_t LastSeen() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<StreamCall>> FallBack(int64_t seen);
  absl::Status CheckOperator(const v1::Trainer& info);

  // Only the thread runs what follows. `ended`: how the last connection ended; not OK: what to go
  // on after. What is returned, if not OK, is the end of it all.
  absl::Status Serve();
  absl::StatusOr<bool> WaitForWork(int attempts, const absl::Status& ended);
  absl::Status Attend(absl::Status* ended);
  absl::StatusOr<int64_t> WhereToGoOn(const v1::Trainer& info, const absl::Status& ended);
  absl::Status Converse(int64_t first, absl::Status* ended);
  absl::Status WaitUntilOver(StreamCall& call);
  absl::Status Judge(const absl::Status& status, absl::Status* ended);
  void Fail(const absl::Status& failure);

  // Whether a reply is waited for, and when it is overdue.
  bool Awaited() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return fell_back_ || !pending_.empty(); }
  absl::Time Due() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  Handle& handle_;
  const size_t depth_;
  const absl::Duration timeout_;

  // Held while an operation is handed over, so that they come in the order of their numbers.
  absl::Mutex submit_mu_ ABSL_ACQUIRED_BEFORE(mu_);

  // Guards, besides, what the handle has.
  absl::Mutex mu_;
  OperationLog* const log_ ABSL_PT_GUARDED_BY(mu_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  // Given up.
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  // BringUp has found that the trainer did, and waits until it is made up for.
  bool fell_back_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  // When something was last replied, or became pending.
  absl::Time progress_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // When the first connection broke since.
  absl::Time broken_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // The last number sent since the trainer last fell back.
  int64_t sent_ ABSL_GUARDED_BY(mu_);

  // Of the connection there is, if any.
  std::shared_ptr<StreamCall> call_ ABSL_GUARDED_BY(mu_);
  int64_t to_send_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t to_answer_ ABSL_GUARDED_BY(mu_) = 0;
  // Nothing is sent until this operation is answered.
  int64_t barrier_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status over_status_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid::client
