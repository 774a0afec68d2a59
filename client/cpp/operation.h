// Options and results of a trainer's operations. Plain data: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "braid/v1/training.pb.h"
#include "client/cpp/tensor.h"

namespace braid::client {

// Inputs and targets of one operation; dim 0 of each is the rows.
struct Batch {
  std::vector<Tensor> inputs;
  std::vector<Tensor> targets;
};

struct StepOptions {
  // Overrides the optimizer's hyperparameters for this update.
  v1::HyperParameters hyper_parameters = {};
  // Fills `status.chunks` of the result with the split of the batch over devices.
  bool report_split = false;
};

struct ForwardOptions {
  // If given, the result has the loss.
  std::vector<Tensor> targets = {};
  // Training mode updates buffers, for example those of batch norm.
  v1::ForwardRequest::Mode mode = v1::ForwardRequest::MODE_TRAIN;
  bool report_split = false;
  // Keeps the autograd graph for a Backward, until the next operation. Training mode only.
  // Checkpoints do not contain graphs: if one is saved between the Forward and its Backward, and
  // the server then restarts, the Backward fails.
  bool keep_graph = false;
};

// Result of an operation that has neither loss nor outputs.
struct OperationResult {
  v1::OperationStatus status;
  // The operation was applied, but its reply was lost with a connection: the server keeps only the
  // last reply. `status` then has the operation's sequence number, but `step` and
  // `durable_sequence` of a later operation. Only set by a Stream.
  bool reply_lost = false;
};

// Result of a Step or a ForwardBackward.
struct LossResult {
  v1::OperationStatus status;
  // NaN if `reply_lost`.
  double loss = 0;
  // See OperationResult::reply_lost.
  bool reply_lost = false;
};

struct ForwardResult {
  v1::OperationStatus status;
  std::vector<Tensor> outputs;
  std::optional<double> loss;
};

}  // namespace braid::client
