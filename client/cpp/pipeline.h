// Sends a trainer's operations over the method Stream and reconnects when the connection breaks.
// Internal.
//
// One thread opens a connection whenever there is something to send or to receive, and decides
// after a broken connection what to send again (operation_log.h). gRPC's threads send the
// operations and deliver the replies.
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

// Owned by a Stream. Thread-safe.
class Pipeline final : private StreamCall::Delegate {
 public:
  struct Reply {
    v1::StreamResponse message;
    // The reply was lost; `message` comes from ReplyFromLater.
    bool lost = false;
  };
  using Callback = absl::AnyInvocable<void(absl::StatusOr<Reply>)>;

  // Uses `handle` exclusively; `handle` must outlive this object. `depth` is the maximum number of
  // operations in flight, at least 1. `timeout` limits the wait for the next reply while operations
  // are in flight.
  Pipeline(Handle& handle, size_t depth, absl::Duration timeout);
  // Cancels the operations in flight.
  ~Pipeline() override;

  // Blocks until there is room, then queues `operation`. Calls `callback` once, in the order of the
  // Submit calls, from another thread or, on error, from this one. `callback` must not call this
  // object.
  void Submit(v1::StreamRequest operation, Callback callback);
  // Implements Handle::Resync while the stream is open. Also returns the pipeline's error.
  absl::StatusOr<Handle::Moment> Resync(absl::Time deadline);
  // Implements Handle::progress while the stream is open.
  Handle::Progress progress();
  // Closes the pipeline and waits for the operations in flight. Returns the pipeline's error, if
  // any.
  absl::Status End();
  // Closes the pipeline and cancels the operations in flight.
  void Abandon();

 private:
  struct Pending {
    int64_t sequence;
    Callback callback;
  };

  StreamCall::Next NextToSend() override;
  absl::Status OnReply(v1::StreamResponse reply) override;
  void OnEnd(const absl::Status& status) override;

  // Moves `operation` and `callback` into the queue on success.
  absl::Status Enqueue(v1::StreamRequest& operation, Callback& callback);
  absl::Status WaitForCapacity(size_t bytes);
  absl::Status CheckOpen() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns the last sequence number whose result was passed to its callback.
  int64_t LastDelivered() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Starts the replay of lost operations up to `delivered`, unless it is running. Returns the
  // connection to cancel for it, or null.
  absl::StatusOr<std::shared_ptr<StreamCall>> StartReplay(int64_t delivered);
  absl::Status CheckLastOperator(const v1::Trainer& info);

  // The functions below run on `thread_` only. `ended` is the status with which the last connection
  // ended. An error in `ended` is recoverable; a returned error ends the pipeline.

  // Runs connections until the pipeline is closed and empty.
  absl::Status Run();
  // Waits until a connection is needed, after a backoff if `attempts` connections have failed.
  // Returns false if none will be needed.
  absl::StatusOr<bool> WaitForWork(int attempts, const absl::Status& ended);
  // Determines where to resume, then runs one connection until it ends.
  absl::Status RunConnection(absl::Status* ended);
  // Returns the sequence number to send next to a trainer in state `info`.
  absl::StatusOr<int64_t> ResumePoint(const v1::Trainer& info, const absl::Status& ended);
  // Runs one call of the method Stream, starting with operation `first`.
  absl::Status RunCall(int64_t first, absl::Status* ended);
  // Waits until `call` has ended. Cancels it if no reply arrives in time.
  absl::Status WaitForEnd(StreamCall& call);
  // Stores a recoverable status in `ended`; returns any other one.
  absl::Status ClassifyEnd(const absl::Status& status, absl::Status* ended);
  // Closes the pipeline. The first pending operation gets `failure`, the later ones CANCELLED.
  void Fail(const absl::Status& failure);

  bool ExpectsReply() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return replaying_ || !pending_.empty();
  }
  // Returns the time by which the next reply must arrive; InfiniteFuture if none is expected.
  absl::Time ReplyDeadline() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  Handle& handle_;
  const size_t depth_;
  const absl::Duration timeout_;

  // Held while an operation is queued, so that callers take their sequence numbers in order.
  absl::Mutex submit_mu_ ABSL_ACQUIRED_BEFORE(mu_);

  // Also guards the mutable state of `handle_`.
  absl::Mutex mu_;
  OperationLog* const log_ ABSL_PT_GUARDED_BY(mu_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  // Resync found that the trainer lost operations and waits for their replay.
  bool replaying_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  // Time of the last reply, or of the first pending operation after an idle period.
  absl::Time last_progress_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // Time of the first broken connection since last_progress_.
  absl::Time disconnected_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // Last sequence number sent since the trainer last lost operations.
  int64_t last_sent_ ABSL_GUARDED_BY(mu_);

  // State of the current connection; `call_` is null without one.
  std::shared_ptr<StreamCall> call_ ABSL_GUARDED_BY(mu_);
  int64_t next_send_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_reply_ ABSL_GUARDED_BY(mu_) = 0;
  // Nothing is sent until this operation has its reply.
  int64_t barrier_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mu_);

  // Last member, so that it is joined first.
  std::thread thread_;
};

}  // namespace braid::client
