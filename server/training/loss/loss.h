// One loss: of one output and one target, or of several (OutputRoles(), TargetNames()). Most losses
// and their parameters are those of torch.nn.functional.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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
  // INVALID_ARGUMENT naming `field`.name, .output, .outputs[i], …
  static absl::StatusOr<Loss> Create(LossSpec spec, LossMode mode, const std::string& field,
                                     const ModelConfig& config);

  // Returns the denominator of the mean over these rows: the count of their elements; with class
  // indices the sum of the class weights of those that count; with class probabilities the count
  // for one class. The rows if a module or the model computes the loss, for Dice, CTC and
  // embeddings, and with reduction "batchmean". 1 with reduction "sum".
  absl::StatusOr<double> Denominator(const TargetRows& rows) const;

  // Returns the loss, 0-dim, of the outputs that it takes, which have the same rows and are on one
  // device; with a gradient if gradients are enabled and an output requires one. Called on that
  // device's worker. Does not wait for the device, except for CTC on a GPU. INVALID_ARGUMENT naming
  // targets[i] for a target that does not match the output, or for a value that the loss does not
  // take; naming `field`.output, .class_weights, … for a mismatch that only an output shows.
  absl::StatusOr<at::Tensor> Compute(absl::Span<const at::Tensor> outputs,
                                     const TargetRows& rows) const;

  // Checks that the losses of the parts of a batch add up to its loss. FAILED_PRECONDITION, naming
  // `field`.module with the numbers, for a module that is neither a mean nor a sum over rows.
  // `output`: of the batch's first rows; `target`: of the whole batch. Called by one thread at a
  // time. Other errors: Compute().
  absl::Status CheckAddsUp(const at::Tensor& output, const HostTensor& target) const;

  // Checks datatypes and shapes of one row of the targets, [1, …], against the outputs, [-1, …];
  // -1: unknown. `targets` need no data. A module may take any target. Errors as Compute().
  absl::Status CheckTargets(const std::vector<std::vector<int64_t>>& outputs,
                            absl::Span<const HostTensor> targets) const;

  LossKind kind() const { return kind_; }
  // Returns the indices of the model outputs that the loss takes: one, or one for each of
  // OutputRoles().
  const std::vector<size_t>& outputs() const { return outputs_; }
  // Returns these of the model's outputs.
  std::vector<at::Tensor> Select(const std::vector<at::Tensor>& outputs) const;
  // Returns the name of the first one.
  const std::string& output_name() const;
  // Returns the names of its targets, which may be none.
  std::vector<std::string> targets() const { return TargetNames(kind_, spec_); }
  // Returns the dim of the batch in its targets from clients: as in the output that they are
  // compared with, except for ctc, whose targets have the batch at dim 0 as in PyTorch.
  size_t target_batch_dim() const { return target_batch_dim_; }
  // With all defaults filled in.
  const LossSpec& spec() const { return spec_; }

 private:
  Loss(LossSpec spec, LossKind kind, std::string field)
      : spec_(std::move(spec)), kind_(kind), field_(std::move(field)) {}

  absl::Status TakeOutputs(const ModelConfig& config);
  // Adds output `name` of the model; empty: the one at `index`. Returns its name.
  absl::StatusOr<std::string> TakeOutput(const ModelConfig& config, const std::string& name,
                                         size_t index);
  // Returns the field that names output `i` of the loss.
  std::string OutputField(size_t i) const;
  // Check that the loss can take outputs of these shapes; -1: unknown.
  absl::Status CheckOutputs(const std::vector<std::vector<int64_t>>& outputs, int64_t rows) const;
  absl::Status CheckOutput(size_t i, const std::vector<int64_t>& output, int64_t rows) const;
  absl::Status CheckEqualShapes(const std::vector<std::vector<int64_t>>& outputs) const;
  // Require a shape that passed CheckOutputs().
  absl::Status CheckWeights(const std::vector<int64_t>& output) const;
  absl::Status CheckPosWeight(const std::vector<int64_t>& output) const;
  absl::Status CheckBlank(const std::vector<int64_t>& output) const;
  absl::StatusOr<at::Tensor> ComputeModule(const at::Tensor& output, const TargetRows& rows) const;
  at::Tensor Evaluate(const std::vector<at::Tensor>& outputs, const at::Tensor& target,
                      const TargetRows& rows) const;
  at::Tensor OfClasses(const at::Tensor& output, const at::Tensor& target, Staging* staging) const;
  at::Tensor OfEmbeddings(const std::vector<at::Tensor>& outputs, const at::Tensor& target) const;
  at::Tensor OfSequences(const at::Tensor& output, const at::Tensor& target,
                         const TargetRows& rows) const;
  int64_t AtReduction() const;
  // Returns spec_.pos_weight on the output's device; nullopt if there is none.
  std::optional<at::Tensor> PosWeightFor(const at::Tensor& output, Staging* staging) const;
  at::Tensor OfModel(const at::Tensor& output) const;

  LossSpec spec_;
  LossKind kind_;
  std::string field_;
  std::vector<size_t> outputs_;
  // Type of the outputs in the configuration; under autocast they may have another.
  DataType type_ = DataType::kFp32;
  uint32_t target_batch_dim_ = 0;
  std::shared_ptr<LossModule> module_;  // kModule only
};

}  // namespace braid
