// One loss of one output and one target. Losses and parameters are those of torch.nn.functional.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/data_type.h"
#include "server/models/model_config.h"
#include "server/training/loss/loss_spec.h"
#include "server/training/loss/loss_target.h"
#include "server/training/trainer_spec.h"

namespace braid {

class LossModule;

// Owned by an Objective. Thread-safe: immutable except for the copies of a module.
class Loss {
 public:
  // `field`: place of the loss in the request ("losses[0]"). `config`: of the model.
  // INVALID_ARGUMENT naming `field`.name, .output, …
  static absl::StatusOr<Loss> Create(LossSpec spec, LossMode mode, const std::string& field,
                                     const ModelConfig& config);

  // Returns the denominator of the mean over these rows: the count of their elements; with class
  // indices the sum of the class weights of those that count; with class probabilities the count
  // for one class; the rows if a module or the model computes the loss. The rows with reduction
  // "batchmean", 1 with reduction "sum".
  absl::StatusOr<double> Denominator(const TargetRows& rows) const;

  // Returns the loss, 0-dim, of `output`, which has the same rows, on the output's device; with a
  // gradient if gradients are enabled and `output` requires one. Called on that device's worker.
  // Does not wait for the device. INVALID_ARGUMENT naming targets[i] for a target that does not
  // match the output, a class index out of range, or NaN; naming `field`.output, .class_weights, …
  // for a mismatch that only an output shows.
  absl::StatusOr<at::Tensor> Compute(const at::Tensor& output, const TargetRows& rows) const;

  // Checks that the losses of the parts of a batch add up to its loss. FAILED_PRECONDITION, naming
  // `field`.module with the numbers, for a module that is neither a mean nor a sum over rows.
  // `output`: of the batch's first rows; `target`: of the whole batch. Called by one thread at a
  // time. Other errors: Compute().
  absl::Status CheckAddsUp(const at::Tensor& output, const HostTensor& target) const;

  // Checks datatype and shape of one row of a target, [1, …], against the output, [-1, …]; -1:
  // unknown. `target` needs no data. A module may take any target. Errors as Compute().
  absl::Status CheckTarget(const std::vector<int64_t>& output, const HostTensor& target) const;

  LossKind kind() const { return kind_; }
  // Returns the index of the model output that the loss takes.
  size_t output_index() const { return output_index_; }
  // With all defaults filled in.
  const LossSpec& spec() const { return spec_; }

 private:
  Loss(LossSpec spec, LossKind kind, std::string field)
      : spec_(std::move(spec)), kind_(kind), field_(std::move(field)) {}

  absl::Status TakeOutput(const ModelConfig& config);
  // Checks that the loss can take an output of this shape; -1: unknown.
  absl::Status CheckOutput(const std::vector<int64_t>& output, int64_t rows) const;
  // Requires a shape that passed CheckOutput().
  absl::Status CheckWeights(const std::vector<int64_t>& output) const;
  at::Tensor Evaluate(const at::Tensor& output, const at::Tensor& target, Staging* staging) const;
  // Returns spec_.pos_weight on the output's device; nullopt if there is none.
  std::optional<at::Tensor> PosWeightFor(const at::Tensor& output, Staging* staging) const;
  at::Tensor OfModel(const at::Tensor& output) const;

  LossSpec spec_;
  LossKind kind_;
  std::string field_;
  size_t output_index_ = 0;
  // Type of the output in the configuration; under autocast it may have another.
  DataType type_ = DataType::kFp32;
  std::shared_ptr<LossModule> module_;  // kModule only
};

}  // namespace braid
