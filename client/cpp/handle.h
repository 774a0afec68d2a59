// One client's view of a trainer: sequence numbers, retries and replay after a restart. Internal.
//
// Operations have consecutive sequence numbers. After a server restart, a trainer is back at its
// newest checkpoint; the handle then sends the lost operations again, as operation_log.h describes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "braid/v1/device.grpc.pb.h"
#include "braid/v1/training.grpc.pb.h"
#include "client/cpp/call.h"
#include "client/cpp/operation_log.h"

namespace braid::client {

class Pipeline;

// Shared by a Trainer, its copies and its Stream. Thread-compatible. While a stream is open, the
// mutex of its pipeline guards the mutable fields, except `pipeline_` itself.
//
// Functions that call the server block for at most CallPolicy::timeout, or until their `deadline`.
class Handle {
 public:
  // Steady clock, because it is compared with the server's uptime.
  using Moment = std::chrono::steady_clock::time_point;

  struct Stubs {
    std::shared_ptr<v1::TrainingService::StubInterface> training;
    std::shared_ptr<v1::DeviceService::StubInterface> devices;
  };

  // `info` is the server's description of the trainer, `policy` applies to each call, and
  // `restart_timeout` is the time to wait for a server that is down, if the trainer has
  // checkpoints.
  Handle(Stubs stubs, const v1::Trainer& info, const CallPolicy& policy,
         absl::Duration restart_timeout);

  const std::string& name() const { return name_; }
  // Returns the sender of operation `sequence`: the trainer's ID, this client's ID, and the client
  // that made the operation before it.
  v1::Sender MakeSender(int64_t sequence) const;
  const CallPolicy& policy() const { return policy_; }
  absl::Duration restart_timeout() const { return restart_timeout_; }
  v1::TrainingService::StubInterface& training() const { return *stubs_.training; }

  // Sets the pipeline of the open stream; null if no stream is open.
  void set_pipeline(Pipeline* pipeline) { pipeline_ = pipeline; }
  // Returns FAILED_PRECONDITION while a stream is open.
  absl::Status CheckNoStream() const;

  // Sends `operation` with the next number. First replays what a restart has undone.
  absl::StatusOr<v1::StreamResponse> Execute(v1::StreamRequest operation);

  // Calls `read` with a policy for its calls. First brings the trainer up to date with Resync, so
  // that `read` never sees a state older than this client has seen. Calls `read` again if the
  // server restarted before it ended.
  absl::Status Read(absl::FunctionRef<absl::Status(const CallPolicy&)> read);
  // Works like Read, but returns UNAVAILABLE instead of calling `read` a second time.
  absl::Status ReadOnce(absl::FunctionRef<absl::Status(const CallPolicy&)> read);
  // Brings the trainer at least to the state that this client has seen, by replaying lost
  // operations. Returns the time at which the server confirmed that state. Fails like the next
  // operation would if the lost operations cannot be replayed.
  absl::StatusOr<Moment> Resync(absl::Time deadline);

  // Replays lost operations as far as possible, before a call that discards the rest. Returns
  // whether all were replayed. Call only while no stream is open.
  absl::StatusOr<bool> Replay(absl::Time deadline);

  // Replays lost operations, waits until the server has processed all it has received, and
  // continues from the resulting state. Keeps the log, including operations that turn out to have
  // been applied, unless the trainer is in a state that this client does not know.
  absl::StatusOr<v1::Trainer> Refresh();
  // Records operations after log().last() that ended with `status` instead of replies. Refresh
  // later finds out whether they were applied. Does nothing if `status` shows that they were not.
  void RecordUnanswered(std::vector<OperationLog::Operation> operations,
                        const absl::Status& status);
  // Forgets the recorded operations: a reply has shown which operations were applied.
  void ClearUnanswered() { unanswered_.clear(); }

  // State that this client has seen, whether or not a restart has undone it since.
  struct Progress {
    // Number of the last applied operation.
    int64_t sequence;
    // OperationLog::retains().
    bool retains;
  };
  Progress progress() const;

  // Description of the trainer at one moment.
  struct TrainerSnapshot {
    v1::Trainer info;
    // When the request was sent. The server was already running then.
    Moment requested_at;
    // The server was unreachable at first.
    bool disconnected = false;
  };
  // Fetches the trainer; waits for a server that is down. ABORTED if the name now belongs to
  // another trainer.
  absl::StatusOr<TrainerSnapshot> FetchTrainer(bool retains, absl::Time deadline) const;

  // Clears the log and continues from the state that `info` describes.
  void StartFrom(const v1::Trainer& info);
  // Returns FAILED_PRECONDITION if another client made an operation that this client believes to be
  // its own.
  absl::Status CheckLastOperator(const v1::Trainer& info) const;

  // Calls GetTrainer. With `settled`, the server first processes all operations it has received.
  absl::StatusOr<v1::Trainer> GetTrainer(const CallPolicy& policy, bool settled = false) const;
  // Writes a checkpoint that contains all operations of this client.
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint();
  // Makes the server write a checkpoint and returns its number; nullopt if the server cannot write
  // checkpoints.
  absl::StatusOr<std::optional<int64_t>> MakeDurable(absl::Duration timeout) const;
  // Trims the log with the result of MakeDurable. Stops retaining operations after nullopt.
  void TrimLog(std::optional<int64_t> durable);

  OperationLog& log() { return log_; }
  // Number of the last operation that the trainer is known to have applied. Lower than log().last()
  // while lost operations are being replayed.
  int64_t last_applied() const { return last_applied_; }
  void set_last_applied(int64_t sequence) { last_applied_ = sequence; }

  // Records that the server was reachable at `moment`, with the trainer in the expected state.
  void OnContact(Moment moment);
  // Records that a connection broke or could not be opened.
  void OnDisconnect() { disconnected_ = true; }
  // Reports whether the server may have restarted since the last contact.
  bool MayHaveRestarted() const;
  // Reports whether the server started after `moment`, by its uptime. False if it does not reply.
  bool StartedAfter(Moment moment) const;

 private:
  // Returns the client that made operation `sequence`, which must be at least `start_`.
  const std::string& ExpectedOperator(int64_t sequence) const;
  // If `info` shows that recorded operations were applied, moves them to the log and returns true.
  // The last of them is then sent again, so that the server compares it with the applied one.
  bool AdoptUnanswered(const v1::Trainer& info);
  // Calls `read` once. Returns whether the server restarted before it ended.
  absl::StatusOr<bool> TryRead(absl::FunctionRef<absl::Status(const CallPolicy&)> read,
                               absl::Time deadline);
  // Sends operations until `last` is applied: the lost ones from the log, then `current`, unless
  // that is null. `current` is not in the log yet. Returns the last reply.
  absl::StatusOr<v1::StreamResponse> SendUpTo(int64_t last, const v1::StreamRequest* current,
                                              absl::Time deadline);
  absl::StatusOr<v1::StreamResponse> Send(const v1::StreamRequest& operation, absl::Time deadline);
  // Returns the policy for a call. If `retains`, it waits for a restarting server.
  CallPolicy RestartPolicy(bool retains, absl::Duration timeout) const;
  // Calls SaveCheckpoint on the trainer in its current state.
  absl::StatusOr<v1::Checkpoint> WriteCheckpoint(bool retains, absl::Duration timeout) const;

  // Constant after construction.
  const Stubs stubs_;
  const std::string name_;
  const std::string trainer_id_;
  const std::string client_id_;
  const CallPolicy policy_;
  const absl::Duration restart_timeout_;

  Pipeline* pipeline_ = nullptr;
  OperationLog log_;
  int64_t last_applied_;
  // Operations after log_.last() whose outcome is unknown.
  std::vector<OperationLog::Operation> unanswered_;
  // The operation after which this client started, and the client that made it.
  int64_t start_;
  std::string start_operator_;
  Moment last_contact_;
  bool disconnected_ = false;
};

// Returns the error of operation `failed`. If `failed` is not `current`, the operation had
// succeeded before, and the message says that its replay failed.
absl::Status ExplainReplayFailure(const absl::Status& status, int64_t failed, int64_t current);

}  // namespace braid::client
