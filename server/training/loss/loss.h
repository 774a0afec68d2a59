// One loss: a number over rows of one output and one target. Losses and parameters are those of
// torch.nn.functional.
#pragma once

#include <cstddef>
#include <memory>
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

// Thread-safe: immutable, but for the copies that its module makes of itself.
class Loss {
 public:
  // The loss at `field` of the request ("losses[0]") for a model of `config`. INVALID_ARGUMENT
  // naming `field`.name, .output, … for what is wrong with it.
  static absl::StatusOr<Loss> Create(LossSpec spec, LossMode mode, const std::string& field,
                                     const ModelConfig& config);

  // What a mean over these rows divides by: their numbers; with class indices the sum of the class
  // weights of those that count, with class probabilities the numbers of one class; rows where a
  // module or the model makes the loss. 1 with reduction "sum".
  absl::StatusOr<double> Denominator(const TargetRows& rows) const;

  // The loss, 0-dim, of the same rows of `output`, with a gradient where gradients are on and
  // `output` requires one; on the output's device, on the thread of that device's worker.
  // INVALID_ARGUMENT naming targets[i] for a target that does not go with the output, a class index
  // that is out of range, or NaN, and `field`.output, .class_weights, … for what only an output
  // shows.
  absl::StatusOr<at::Tensor> Compute(const at::Tensor& output, const TargetRows& rows) const;

  // Checks that the loss of a batch follows from those of its parts. FAILED_PRECONDITION, naming
  // `field`.module with the evidence, for a module that is neither a mean nor a sum over rows.
  // `output`: of the batch's first rows; `target`: the whole batch's. Called by one thread at a
  // time; other errors are Compute()'s.
  absl::Status CheckAddsUp(const at::Tensor& output, const HostTensor& target) const;

  LossKind kind() const { return kind_; }
  // Which of the model's outputs it takes.
  size_t output_index() const { return output_index_; }
  // With all defaults filled in.
  const LossSpec& spec() const { return spec_; }

 private:
  Loss(LossSpec spec, LossKind kind, std::string field)
      : spec_(std::move(spec)), kind_(kind), field_(std::move(field)) {}

  absl::Status TakeOutput(const ModelConfig& config);
  // Whether an output is one that the loss can be taken of.
  absl::Status CheckOutput(const at::Tensor& output, int64_t rows) const;
  absl::Status CheckWeights(const at::Tensor& output) const;
  at::Tensor Evaluate(const at::Tensor& output, const at::Tensor& target) const;
  at::Tensor OfModel(const at::Tensor& output) const;

  LossSpec spec_;
  LossKind kind_;
  std::string field_;
  size_t output_index_ = 0;
  // That the configuration gives the output: under autocast it may come in another.
  DataType type_ = DataType::kFp32;
  std::shared_ptr<LossModule> module_;  // of kModule
};

}  // namespace braid
