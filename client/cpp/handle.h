// Where one client is with a trainer: its numbers, and operating it through restarts. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "braid/v1/device.grpc.pb.h"
#include "braid/v1/training.grpc.pb.h"
#include "client/cpp/call.h"
#include "client/cpp/operation_log.h"

namespace braid::client {

// Thread-compatible. While a stream is open, its mutex guards what is not immutable, but for
// `streaming`.
class Handle {
 public:
  struct Stubs {
    std::shared_ptr<v1::TrainingService::StubInterface> training;
    std::shared_ptr<v1::DeviceService::StubInterface> devices;
  };

  // `info`: as the server describes the trainer. `policy`: of each call. `patience`: how long a
  // server that is away is waited for, where that is of use.
  Handle(Stubs stubs, const v1::Trainer& info, const CallPolicy& policy, absl::Duration patience);

  const std::string& name() const { return name_; }
  const CallPolicy& policy() const { return policy_; }
  absl::Duration patience() const { return patience_; }
  v1::TrainingService::StubInterface& training() const { return *stubs_.training; }

  bool streaming() const { return streaming_; }
  void set_streaming(bool streaming) { streaming_ = streaming; }
  // FAILED_PRECONDITION while a stream is open.
  absl::Status CheckFree() const;

  // Sends `operation` with the next number, and first what a restart has undone.
  absl::StatusOr<v1::StreamResponse> Operate(v1::StreamRequest operation);

  // Takes the trainer to stand at `applied`. What is kept is forgotten if it is elsewhere.
  void GoOnFrom(int64_t applied);

  absl::StatusOr<v1::Trainer> Info(const CallPolicy& policy) const;
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint(absl::Duration timeout) const;
  // Has a checkpoint written and returns its number; none of a server that writes none.
  absl::StatusOr<std::optional<int64_t>> MakeDurable(absl::Duration timeout) const;
  // Drops what MakeDurable has shown to be kept in vain.
  void Settle(std::optional<int64_t> durable);

  OperationLog& log() { return log_; }
  // The last number applied, as far as is known. Less than log().last() while what a restart of the
  // server has undone is being sent again.
  int64_t standing() const { return standing_; }
  void set_standing(int64_t sequence) { standing_ = sequence; }

  // The server has replied to an operation.
  void Heard();
  // The connection broke, or could not be made.
  void Broke() { broke_ = true; }
  // Whether the server may be another instance than the one that replied last.
  bool Restarted() const;

 private:
  absl::StatusOr<v1::StreamResponse> SendUpTo(const v1::StreamRequest& operation,
                                              absl::Time deadline);
  absl::StatusOr<v1::StreamResponse> Send(const v1::StreamRequest& operation, absl::Time deadline);
  // The policy of a call that a server which comes back is waited for, if that is of use.
  CallPolicy Patient(absl::Duration timeout) const;

  // Immutable.
  const Stubs stubs_;
  const std::string name_;
  const CallPolicy policy_;
  const absl::Duration patience_;

  bool streaming_ = false;
  OperationLog log_;
  int64_t standing_;
  // Steady: it is compared with the server's uptime.
  std::chrono::steady_clock::time_point heard_at_;
  bool broke_ = false;
};

// What to return where the operation of number `failed` itself fails, while `asked` was to be sent:
// `status`, unless it had succeeded before.
absl::Status OwnFailure(const absl::Status& status, int64_t failed, int64_t asked);

}  // namespace braid::client
