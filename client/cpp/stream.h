// Keeps several operations of a trainer in flight and survives broken connections.
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
  // Maximum number of operations in flight, at least 1. The server buffers up to 8 of
  // them.
  size_t depth = 2;
  // Capacity of the log of operations that are not durable yet, which a replay after a server
  // restart needs. If the log is full, a call first waits for the pending replies, since they may
  // report a checkpoint, and then requests a checkpoint. Without a checkpoint policy the log holds
  // only operations in flight.
  size_t buffer_operations = OperationLog::kUnlimited;
  int64_t buffer_bytes = OperationLog::kDefaultBytes;
  // Maximum wait for the next reply while operations are in flight. Default:
  // ClientOptions::timeout.
  std::optional<absl::Duration> timeout = {};
};

// Created by Trainer::OpenStream and owned by the caller. Thread-safe, except Finish. While the
// stream is open, the trainer's own operations fail. The stream may outlive the Trainer.
//
// Each method queues an operation and returns the future of its result. It blocks while `depth`
// operations are in flight. Operations are applied, and futures become ready, in the order of the
// calls.
//
// If the connection breaks, the stream reconnects for up to ClientOptions::restart_timeout. It then
// sends every operation that the server has not applied, or has lost in a restart, as described in
// operation_log.h. Futures that are ready keep their results.
//
// An operation that fails ends the stream. Its future has the error; later futures have CANCELLED,
// and their operations are not applied. Afterwards every method and Finish return the error.
class Stream {
 public:
  template <typename Result>
  using Future = std::future<absl::StatusOr<Result>>;

  // Used by Trainer only. The stream has exclusive use of `handle`.
  Stream(std::shared_ptr<Handle> handle, const StreamOptions& options);
  // Without Finish, cancels the operations in flight. Call Trainer::Refresh before operating the
  // trainer again: it finds out which of them were applied.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // See the methods of Trainer.
  Future<LossResult> Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                          const StepOptions& options = {});
  Future<LossResult> ForwardBackward(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                     bool report_split = false);
  Future<OperationResult> OptimStep(const v1::HyperParameters& hyper_parameters = {});
  // Later operations are sent after the reply to this one.
  Future<int64_t> Publish();

  // Closes the stream and waits until all operations are applied. Returns the stream's error, if
  // any. The trainer's own operations work again afterwards.
  absl::Status Finish();

 private:
  template <typename Result>
  Future<Result> Submit(v1::StreamRequest&& operation, Result (*read)(Pipeline::Reply&&));
  // Returns the handle to the trainer, so that its own operations work again.
  void Release();

  const std::shared_ptr<Handle> handle_;
  bool finished_ = false;
  Pipeline pipeline_;
};

}  // namespace braid::client
