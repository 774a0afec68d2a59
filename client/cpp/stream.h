// Operations of a trainer, several on their way at once, through broken connections.
//
//   absl::StatusOr<std::unique_ptr<Stream>> stream = trainer.OpenStream({.depth = 4});
//   for (…) losses.push_back((*stream)->Step(std::move(inputs), std::move(targets)));
//   absl::Status status = (*stream)->Finish();
//   absl::StatusOr<LossResult> first = losses[0].get();
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/handle.h"
#include "client/cpp/operation.h"
#include "client/cpp/operation_log.h"
#include "client/cpp/pipeline.h"

namespace braid::client {

struct StreamOptions {
  // The most operations under way; at least 1. The server takes in 8 of them ahead.
  size_t depth = 2;
  // The most that is kept for sending again after the server's restart. Where they are full a call
  // waits for the replies under way, which may say that a checkpoint was written, then has the
  // server write one. A trainer without a checkpoint policy keeps nothing that was applied.
  size_t buffer_operations = OperationLog::kAnyNumber;
  int64_t buffer_bytes = OperationLog::kDefaultBytes;
  // In which something must be replied while operations are under way. Default: the client's.
  std::optional<absl::Duration> timeout = {};
};

// From Trainer::OpenStream. Thread-safe, but for Finish. While it is there, the trainer's
// operations go through it alone. It may outlive the Trainer.
//
// Each method hands an operation over and returns the future of its result; it blocks while `depth`
// operations are under way. Operations are applied, and futures become ready, in the order of the
// calls.
//
// A connection that breaks is made again, for as long as ClientOptions::restart_timeout says, and
// what the server has not applied, or has lost because it was started again, is sent again, by the
// rule in operation_log.h: every operation stays in a buffer until it is durable. Futures that are
// ready stay as they are.
//
// An operation that fails ends the stream: its future has the error, those behind it have
// CANCELLED, as none of them is applied. After that every method, and Finish, give the error.
class Stream {
 public:
  template <typename Result>
  using Future = std::future<absl::StatusOr<Result>>;

  // For Trainer's own use: nothing else may operate by `handle`.
  Stream(std::shared_ptr<Handle> handle, const StreamOptions& options);
  // Gives up what is under way, where Finish was not called; Trainer::Refresh then says, and takes
  // over, where the trainer stands.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // As Trainer's.
  Future<LossResult> Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                          const StepOptions& options = {});
  Future<LossResult> ForwardBackward(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                     bool report_split = false);
  Future<OperationResult> OptimStep(const v1::HyperParameters& hyper_parameters = {});
  // What comes behind it is sent once it is answered.
  Future<int64_t> Publish();

  // Takes no more operations and waits until all are applied. Returns what the stream failed with,
  // if it did. After that the trainer's own methods operate it again.
  absl::Status Finish();

 private:
  template <typename Result>
  Future<Result> Submit(v1::StreamRequest&& operation, Result (*read)(Pipeline::Reply&&));
  void Release();

  const std::shared_ptr<Handle> handle_;
  bool finished_ = false;
  Pipeline pipeline_;
};

}  // namespace braid::client
