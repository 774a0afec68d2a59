// Where one client is with a trainer: its numbers, and operating it through restarts. Internal.
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

// Thread-compatible. While a stream is open, its pipeline's mutex guards what is not immutable, but
// for the pipeline itself.
class Handle {
 public:
  // Steady: it is compared with the server's uptime.
  using Moment = std::chrono::steady_clock::time_point;

  struct Stubs {
    std::shared_ptr<v1::TrainingService::StubInterface> training;
    std::shared_ptr<v1::DeviceService::StubInterface> devices;
  };

  // `info`: as the server describes the trainer. `policy`: of each call. `patience`: how long a
  // server that is away is waited for, where that is of use.
  Handle(Stubs stubs, const v1::Trainer& info, const CallPolicy& policy, absl::Duration patience);

  const std::string& name() const { return name_; }
  // Who an operation is from, which trainer it is for, and whom it follows.
  v1::Sender SenderOf(int64_t sequence) const;
  const CallPolicy& policy() const { return policy_; }
  absl::Duration patience() const { return patience_; }
  v1::TrainingService::StubInterface& training() const { return *stubs_.training; }

  // Of the stream that is open; null: none is.
  void set_pipeline(Pipeline* pipeline) { pipeline_ = pipeline; }
  // FAILED_PRECONDITION while a stream is open.
  absl::Status CheckFree() const;

  // Sends `operation` with the next number, and first what a restart has undone.
  absl::StatusOr<v1::StreamResponse> Operate(v1::StreamRequest operation);

  // Calls `read`, with the policy to call the server by, on a trainer that has all that was
  // operated here: a restart would take it back without a word, so it is made up for first. Calls
  // it again if there was one between that and its end.
  absl::Status Read(absl::FunctionRef<absl::Status(const CallPolicy&)> read);
  // As Read, of what cannot be called again: UNAVAILABLE where it would be.
  absl::Status ReadOnce(absl::FunctionRef<absl::Status(const CallPolicy&)> read);
  // Has the trainer stand where this client has seen it, or further on. Returns when the server
  // that said so was there; what the next operation would, if the trainer has lost what cannot be
  // sent again.
  absl::StatusOr<Moment> BringUp(absl::Time deadline);

  // Sends again what a restart has undone, as far as it can be: the rest is to be given up. Returns
  // whether all could be. Not while a stream is open.
  absl::StatusOr<bool> MakeUp(absl::Time deadline);

  // Goes on from where the trainer stands once the server is done with what it was sent. What is
  // kept stays, and with it what turns out to have been applied, unless the trainer is elsewhere.
  absl::StatusOr<v1::Trainer> Sync();
  // `status` came in place of the replies to `operations`, those after log().last(): if it leaves
  // open whether they were applied, Sync will see. A refusal says that none was, and nothing of
  // what came before it.
  void LeaveOpen(std::vector<OperationLog::Operation> operations, const absl::Status& status);
  // A reply has come, so nothing is open that was.
  void ForgetUnanswered() { unanswered_.clear(); }

  // What is known of the trainer, whether or not a restart has undone it.
  struct Seen {
    // The last number applied.
    int64_t sequence;
    // Its OperationLog::keeps().
    bool keeps;
  };
  Seen seen() const;

  // The trainer, and when the server that tells was asked, after it was started.
  struct Look {
    v1::Trainer info;
    Moment asked;
    // The server was away meanwhile.
    bool broke = false;
  };
  absl::StatusOr<Look> LookUp(bool keeps, absl::Time deadline) const;

  // Operates the trainer from where `info` says on, and forgets what it has operated.
  void BeginAt(const v1::Trainer& info);
  // FAILED_PRECONDITION if another has operated the trainer in place of this client.
  absl::Status CheckOperator(const v1::Trainer& info) const;

  // `settled`: once what the server has received before is applied or has failed.
  absl::StatusOr<v1::Trainer> Info(const CallPolicy& policy, bool settled = false) const;
  // A checkpoint that holds all that was operated here, written now.
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint();
  // Has a checkpoint written and returns its number; none of a server that writes none.
  absl::StatusOr<std::optional<int64_t>> MakeDurable(absl::Duration timeout) const;
  // Drops what MakeDurable has shown to be kept in vain.
  void Settle(std::optional<int64_t> durable);

  OperationLog& log() { return log_; }
  // The last number applied, as far as is known. Less than log().last() while what a restart of the
  // server has undone is being sent again.
  int64_t standing() const { return standing_; }
  void set_standing(int64_t sequence) { standing_ = sequence; }

  // At `moment` the server was there, with a trainer that stands as was seen.
  void Heard(Moment moment);
  // The connection broke, or could not be made.
  void Broke() { broke_ = true; }
  // Whether the server may be another instance than the one that replied last.
  bool Restarted() const;
  // Whether the server was started after `moment`, as far as it tells.
  bool StartedAfter(Moment moment) const;

 private:
  // Who made that operation, as this client knows, which has begun there or before it.
  const std::string& OperatorOf(int64_t sequence) const;
  // Whether `info` says that operations without a reply were applied: they are kept from now on,
  // and the last of them is to be sent again, so that the server compares it with what it applied.
  bool TakeOver(const v1::Trainer& info);
  // Calls `read` once; whether the server was started again before its end.
  absl::StatusOr<bool> TryRead(absl::FunctionRef<absl::Status(const CallPolicy&)> read,
                               absl::Time deadline);
  // Has all up to `last` applied: what was undone, and `asked`, unless null, which is not kept yet.
  // Returns the last reply.
  absl::StatusOr<v1::StreamResponse> SendUpTo(int64_t last, const v1::StreamRequest* asked,
                                              absl::Time deadline);
  absl::StatusOr<v1::StreamResponse> Send(const v1::StreamRequest& operation, absl::Time deadline);
  // The policy of a call that a server which comes back is waited for, if that is of use.
  CallPolicy Patient(bool keeps, absl::Duration timeout) const;
  // A checkpoint of the trainer as it stands.
  absl::StatusOr<v1::Checkpoint> WriteCheckpoint(bool keeps, absl::Duration timeout) const;

  // Immutable.
  const Stubs stubs_;
  const std::string name_;
  const std::string trainer_id_;
  const std::string client_id_;
  const CallPolicy policy_;
  const absl::Duration patience_;

  Pipeline* pipeline_ = nullptr;
  OperationLog log_;
  int64_t standing_;
  // What was sent after log_.last(), without a reply that would tell whether it was applied.
  std::vector<OperationLog::Operation> unanswered_;
  // Where this client began to operate: after which operation, and after whom.
  int64_t begun_;
  std::string follows_;
  Moment heard_at_;
  bool broke_ = false;
};

// What to return where the operation of number `failed` itself fails, while `asked` was to be sent:
// `status`, unless it had succeeded before.
absl::Status OwnFailure(const absl::Status& status, int64_t failed, int64_t asked);

}  // namespace braid::client
