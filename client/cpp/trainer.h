// A trainer on the server, and the sequence number that makes its operations safe to send again.
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
  // What to measure beyond the loss: "accuracy", "top_k", "confusion", "mse", "mae".
  std::vector<std::string> metrics = {};
  // Of "top_k". 0: the server's default.
  int64_t k = 0;
};

// Thread-compatible: operations are ordered, so one at a time. May outlive its Client. Copies are
// the same trainer.
//
// Each operation carries the next sequence number. While the answer is UNAVAILABLE it is sent
// again, with the same number, as often as ClientOptions::max_attempts says; the server applies it
// once. An operation that the server refuses changes nothing and uses up no number. After
// UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED it is not known whether the operation was applied:
// the same operation with the same arguments, called again, gives its result either way; before
// another one, call Refresh.
//
// With a checkpoint policy operations survive the server's restart: it is waited for, as long as
// ClientOptions::restart_timeout says, and what the trainer has lost is sent again, by the rule in
// operation_log.h, before the next one and before the trainer's state is read: Evaluate, StateDict,
// DownloadModel and SaveCheckpoint never find an older one than this object has seen, but are
// FAILED_PRECONDITION where what was lost cannot be sent again. For that every operation is kept
// until it is durable, in 512 MiB at most; when they are full, the server is asked to write a
// checkpoint. What another client has operated is never sent again: an operation out of turn is
// FAILED_PRECONDITION or ABORTED.
class Trainer {
 public:
  // For Client's own use. `info`: as the server described the trainer.
  Trainer(std::shared_ptr<Handle> handle, v1::Trainer info);

  // As the server described it when this object was made, or at the last Refresh.
  const v1::Trainer& info() const { return info_; }
  // The number of the last operation that is known to be applied; 0: none. Not while a stream is
  // open.
  int64_t sequence() const { return handle_->log().last(); }

  // One training step. Pass the tensors with std::move: their bytes are not copied then.
  absl::StatusOr<LossResult> Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                  const StepOptions& options = {});
  // Adds to the accumulated gradients.
  absl::StatusOr<LossResult> ForwardBackward(std::vector<Tensor> inputs,
                                             std::vector<Tensor> targets,
                                             bool report_split = false);
  // One update from the accumulated gradients. FAILED_PRECONDITION if there are none. With
  // LOSS_MODE_CLIENT a plateau schedule does not move without `metric`: there is no other loss.
  absl::StatusOr<OperationResult> OptimStep(const v1::HyperParameters& hyper_parameters = {});
  // The forward pass alone.
  absl::StatusOr<ForwardResult> Forward(std::vector<Tensor> inputs, ForwardOptions options = {});
  // Backward from the Forward with `keep_graph` just before, of a loss of the caller's own: its
  // gradient with respect to each output, by name. FAILED_PRECONDITION if there is no graph.
  absl::StatusOr<OperationResult> Backward(std::vector<Tensor> output_gradients);
  // Makes the weights the next version of the model; returns that version.
  absl::StatusOr<int64_t> Publish();

  // Operations with several of them on their way at once; until the stream is finished or gone,
  // they go through it alone. INVALID_ARGUMENT for a depth or a buffer of 0, FAILED_PRECONDITION
  // while another one is open.
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream(const StreamOptions& options = {});

  // Loss and metrics over the batches that `next` gives, until it gives none, in eval mode, each
  // with the weights as they are when its turn comes. Changes nothing and takes no number. Sent
  // once. Without a loss, and FAILED_PRECONDITION without a metric, where the client computes the
  // loss. INVALID_ARGUMENT without a batch.
  absl::StatusOr<v1::EvaluateResponse> Evaluate(absl::FunctionRef<std::optional<Batch>()> next,
                                                const EvaluateOptions& options = {});
  absl::StatusOr<v1::EvaluateResponse> Evaluate(std::vector<Batch> batches,
                                                const EvaluateOptions& options = {});

  // Has the server write a checkpoint, and returns it once it is durable.
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint();
  // The oldest first.
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints();
  // Has the trainer stand where a checkpoint stands, and goes on from there. Default: the newest,
  // once what a restart has undone is sent again, if it can be: it may have checkpoints written.
  absl::StatusOr<v1::Checkpoint> RestoreCheckpoint(const std::string& name = {});

  // Parameters and buffers, in the module's order.
  absl::StatusOr<std::vector<StateEntry>> StateDict();
  // Writes the model, with its weights as they are now, to a file, which is replaced once all has
  // come. Returns its size.
  absl::StatusOr<int64_t> DownloadModel(
      const std::string& path,
      v1::DownloadModelRequest::Format format = v1::DownloadModelRequest::FORMAT_TORCHSCRIPT);

  // Asks the server where the trainer stands, and goes on from there, once what a restart has
  // undone is sent again, if it can be, and what the server has received already is applied or has
  // failed: so the number stays. What of it this object has sent is kept for the next restart.
  absl::Status Refresh();
  // Deletes the trainer on the server; after that, every operation is NOT_FOUND.
  absl::Status Delete();

 private:
  std::shared_ptr<Handle> handle_;
  v1::Trainer info_;
};

}  // namespace braid::client
