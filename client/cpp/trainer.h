// A trainer on the server, and the sequence number that makes its operations safe to send again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.grpc.pb.h"
#include "client/cpp/call.h"
#include "client/cpp/state_dict.h"
#include "client/cpp/tensor.h"

namespace braid::client {

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
};

struct LossResult {
  v1::OperationStatus status;
  double loss = 0;
};

struct ForwardResult {
  v1::OperationStatus status;
  std::vector<Tensor> outputs;
  std::optional<double> loss;
};

// Thread-compatible: operations are ordered, so one at a time. May outlive its Client.
//
// Each operation carries the next sequence number. While the answer is UNAVAILABLE it is sent
// again, with the same number, as often as ClientOptions::max_attempts says; the server applies it
// once. An operation that the server refuses changes nothing and uses up no number. After
// UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED it is not known whether the operation was applied:
// the same operation with the same arguments, called again, gives its result either way; before
// another one, call Refresh.
class Trainer {
 public:
  // `info`: as the server described the trainer. `stub` must not be null.
  Trainer(std::shared_ptr<v1::TrainingService::StubInterface> stub, v1::Trainer info,
          CallPolicy policy);

  // As the server described it when this object was made, or at the last Refresh.
  const v1::Trainer& info() const { return info_; }
  // The number of the last operation that is known to be applied; 0: none.
  int64_t sequence() const { return sequence_; }

  // One training step. Pass the tensors with std::move: their bytes are not copied then.
  absl::StatusOr<LossResult> Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                  const StepOptions& options = {});
  // Adds to the accumulated gradients.
  absl::StatusOr<LossResult> ForwardBackward(std::vector<Tensor> inputs,
                                             std::vector<Tensor> targets,
                                             bool report_split = false);
  // One update from the accumulated gradients. FAILED_PRECONDITION if there are none.
  absl::StatusOr<v1::OperationStatus> OptimStep(const v1::HyperParameters& hyper_parameters = {});
  // The forward pass alone.
  absl::StatusOr<ForwardResult> Forward(std::vector<Tensor> inputs, ForwardOptions options = {});

  // Makes the weights the next version of the model; returns that version.
  absl::StatusOr<int64_t> Publish();
  // Parameters and buffers, in the module's order.
  absl::StatusOr<std::vector<StateEntry>> StateDict();
  // Asks the server where the trainer stands, and goes on from there.
  absl::Status Refresh();
  // Deletes the trainer on the server; after that, every operation is NOT_FOUND.
  absl::Status Delete();

 private:
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Apply(grpc::Status (v1::TrainingService::StubInterface::*method)(
                                  grpc::ClientContext*, const Request&, Reply*),
                              Request& request);

  std::shared_ptr<v1::TrainingService::StubInterface> stub_;
  CallPolicy policy_;
  v1::Trainer info_;
  int64_t sequence_;
};

}  // namespace braid::client
