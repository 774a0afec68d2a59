// What a trainer's operations take and give.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "braid/v1/training.pb.h"
#include "client/cpp/tensor.h"

namespace braid::client {

struct Batch {
  std::vector<Tensor> inputs;
  std::vector<Tensor> targets;
};

struct StepOptions {
  // For this update, in place of the optimizer's own.
  v1::HyperParameters hyper_parameters = {};
  // Fills `status.chunks` of the result.
  bool report_split = false;
};

struct ForwardOptions {
  // With it, the result carries the loss.
  std::vector<Tensor> targets = {};
  // Default: training mode, which updates buffers.
  v1::ForwardRequest::Mode mode = v1::ForwardRequest::MODE_TRAIN;
  bool report_split = false;
  // Keeps what Backward needs, until the next operation. Only in training mode. No checkpoint holds
  // it: one that is saved in between leaves the Backward nothing to be sent again on, after a
  // restart of the server.
  bool keep_graph = false;
};

struct OperationResult {
  v1::OperationStatus status;
  // The operation was applied, but the connection broke before its reply came, and the server keeps
  // that of the last one alone: `status` has its number, and a later operation's step and durable
  // number. Only of operations of a Stream.
  bool reply_lost = false;
};

struct LossResult {
  v1::OperationStatus status;
  // Not a number where `reply_lost`.
  double loss = 0;
  // As in OperationResult.
  bool reply_lost = false;
};

struct ForwardResult {
  v1::OperationStatus status;
  std::vector<Tensor> outputs;
  std::optional<double> loss;
};

}  // namespace braid::client
