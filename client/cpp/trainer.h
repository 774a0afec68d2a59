// A trainer on the server. Sequence numbers make its operations idempotent, so they can be retried.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"
#include "client/cpp/handle.h"
#include "client/cpp/operation.h"
#include "client/cpp/state_dict.h"
#include "client/cpp/stream.h"
#include "client/cpp/tensor.h"

namespace braid::client {

struct EvaluateOptions {
  // Metrics in addition to the loss: "accuracy", "top_k", "confusion", "mse", "mae".
  std::vector<std::string> metrics = {};
  // The k of "top_k". 0 means the server's default.
  int64_t k = 0;
};

// Handle of a trainer. Copies refer to the same trainer. May outlive its Client. Thread-compatible:
// a trainer applies one operation after the other. Methods block until the server replies.
//
// Each operation carries the next sequence number. While the server is UNAVAILABLE, the operation
// is retried with the same number, up to ClientOptions::max_attempts times; the server applies it
// once. A rejected operation changes nothing and uses no number. After UNAVAILABLE,
// DEADLINE_EXCEEDED or CANCELLED it is unknown whether the operation was applied. Call it again
// with the same arguments to get its result, or call Refresh before another operation.
//
// With a checkpoint policy, training survives a server restart. The client waits up to
// ClientOptions::restart_timeout for the server and sends the lost operations again (see
// operation_log.h). It does so before the next operation and before Evaluate, StateDict,
// DownloadModel and SaveCheckpoint, so these never see a state older than this object has seen.
// They return FAILED_PRECONDITION if the lost operations cannot be sent again. For this, operations
// stay in a log of up to 512 MiB until they are durable; if the log is full, the client requests a
// checkpoint. The client never sends another client's operations again. If another client has
// operated the trainer, operations return FAILED_PRECONDITION or ABORTED.
class Trainer {
 public:
  // Used by Client only. `info` is the server's description of the trainer.
  Trainer(std::shared_ptr<Handle> handle, v1::Trainer info);

  // Returns the server's description of the trainer at construction or at the last Refresh.
  const v1::Trainer& info() const { return info_; }
  // Returns the number of the last operation known to be applied; 0 before the first. Do not call
  // while a stream is open.
  int64_t sequence() const { return handle_->log().last(); }

  // Runs one training step: forward, loss, backward and update. Move the tensors in to avoid a copy
  // of their bytes.
  absl::StatusOr<LossResult> Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                  const StepOptions& options = {});
  // Runs forward, loss and backward, and adds to the accumulated gradients.
  absl::StatusOr<LossResult> ForwardBackward(std::vector<Tensor> inputs,
                                             std::vector<Tensor> targets,
                                             bool report_split = false);
  // Updates the parameters from the accumulated gradients. FAILED_PRECONDITION if there are none.
  // With LOSS_MODE_CLIENT, a plateau schedule advances only if `metric` is set.
  absl::StatusOr<OperationResult> OptimStep(const v1::HyperParameters& hyper_parameters = {});
  // Runs the forward pass only.
  absl::StatusOr<ForwardResult> Forward(std::vector<Tensor> inputs, ForwardOptions options = {});
  // Runs backward for a loss computed by the caller. Must directly follow a Forward with
  // `keep_graph`. `output_gradients` are the gradients of the loss with respect to the outputs, by
  // name. FAILED_PRECONDITION if there is no graph.
  absl::StatusOr<OperationResult> Backward(std::vector<Tensor> output_gradients);
  // Publishes the current weights as the next version of the model and returns that version.
  absl::StatusOr<int64_t> Publish();

  // Opens a stream, which keeps several operations in flight. Until it is finished or destroyed,
  // the trainer's operations must use it. INVALID_ARGUMENT if the depth or a buffer limit is 0,
  // FAILED_PRECONDITION if another stream is open.
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream(const StreamOptions& options = {});

  // Evaluates loss and metrics, in eval mode, over the batches that `next` returns until nullopt.
  // Each batch uses the weights at the time it runs. Changes no state, uses no number, is not
  // retried. With LOSS_MODE_CLIENT the result has no loss, and at least one metric is required
  // (FAILED_PRECONDITION). INVALID_ARGUMENT without a batch.
  absl::StatusOr<v1::EvaluateResponse> Evaluate(absl::FunctionRef<std::optional<Batch>()> next,
                                                const EvaluateOptions& options = {});
  absl::StatusOr<v1::EvaluateResponse> Evaluate(std::vector<Batch> batches,
                                                const EvaluateOptions& options = {});

  // Writes a checkpoint on the server and returns it once it is durable.
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint();
  // Lists the checkpoints, oldest first.
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints();
  // Restores the trainer from a checkpoint and continues from there. Default: the newest
  // checkpoint, after replaying operations lost in a restart, since the replay may write newer
  // checkpoints.
  absl::StatusOr<v1::Checkpoint> RestoreCheckpoint(const std::string& name = {});

  // Returns parameters and buffers in the module's order.
  absl::StatusOr<std::vector<StateEntry>> StateDict();
  // Writes the model with its current weights to `path`. Replaces an existing file only after the
  // download is complete. Returns the size in bytes.
  absl::StatusOr<int64_t> DownloadModel(
      const std::string& path,
      v1::DownloadModelRequest::Format format = v1::DownloadModelRequest::FORMAT_TORCHSCRIPT);

  // Fetches the trainer's state and continues from there. First replays operations lost in a
  // restart, if possible, and waits until the server has processed all operations it has received.
  // Keeps this object's applied operations for a later replay.
  absl::Status Refresh();
  // Deletes the trainer on the server. Afterwards every operation returns NOT_FOUND.
  absl::Status Delete();

 private:
  std::shared_ptr<Handle> handle_;
  v1::Trainer info_;
};

}  // namespace braid::client
