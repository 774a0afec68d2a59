// The objective of a trainer: the weighted sum of its losses.
//
// A batch may be computed in parts, by several replicas or one after the other. The mean over the
// batch is then the sum of the parts' means, each times the part's share of the denominator of the
// whole mean. The same holds for the gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"
#include "server/training/loss/loss.h"
#include "server/training/trainer_spec.h"

namespace braid {

// One loss of an objective: `value`, 0-dim, on the device that computed it.
struct LossTerm {
  at::Tensor value;
  double factor = 1;
};

struct ObjectiveValue {
  std::vector<LossTerm> terms;
  // One per output of the model; undefined where no loss depends on the output, and all undefined
  // unless gradients are requested.
  std::vector<at::Tensor> output_gradients;

  // Returns Σ factor · value. Waits for the device.
  double loss() const;
};

struct GradientRequest {
  bool wanted = true;
  // Factor of the loss before it is differentiated. The reported loss is unscaled.
  double scale = 1;
};

// Returns the shape [-1, …] of a batch of the output; -1: unknown. May have no dimension.
std::vector<int64_t> OutputShape(const ModelConfig& config, size_t index);

// Shared by a trainer and its evaluations. Immutable, thread-safe.
class Objective {
 public:
  // Fills in the defaults of the losses of `*spec`. INVALID_ARGUMENT naming losses, losses[i].name,
  // … or unweighted_mean.
  static absl::StatusOr<std::shared_ptr<const Objective>> Create(TrainerSpec* spec,
                                                                 const ModelConfig& config);

  // Picks from a request's `targets` those of each loss, in the losses' order; with
  // LossMode::kClient only the target of measured(). Names each by its place in the request,
  // "targets[1]", for the errors of the functions below. Returns none if needs_targets() is false.
  // INVALID_ARGUMENT for a target that is unknown, duplicated, missing, or not of `rows` rows.
  absl::StatusOr<std::vector<HostTensor>> PickTargets(const std::vector<HostTensor>& targets,
                                                      int64_t rows) const;

  // Checks the targets of one row each, [1, …], which need no data, against the model's outputs.
  // Errors as PickTargets() and Loss::CheckTargets().
  absl::Status CheckTargets(const std::vector<HostTensor>& targets,
                            const ModelConfig& config) const;

  // Returns false if the losses take no targets: with LossMode::kModel, where the targets are
  // inputs of the model, and if all losses compare outputs.
  bool needs_targets() const { return !target_names_.empty(); }
  // Returns the dim that is the batch in the target `name` of a client: as in the output of the
  // first loss that takes it; 0 for ctc, as in PyTorch, and for unknown names.
  size_t TargetBatchDim(absl::string_view name) const;
  // Returns the part of PickTargets()'s `targets` that loss `i` takes.
  absl::Span<const HostTensor> TargetsOf(size_t i, const std::vector<HostTensor>& targets) const;
  // Returns for each output of the model whether a loss takes it.
  const std::vector<bool>& takes_output() const { return takes_output_; }
  const std::vector<Loss>& losses() const { return losses_; }
  // Returns the loss whose target and output metrics compare: the first loss; with
  // LossMode::kClient "target" and the first output.
  const LossSpec& measured() const;
  size_t measured_output() const;
  // Returns true if a loss is a module, which may draw random numbers.
  bool has_module() const;

  // Returns each loss's Denominator() over rows [start, start + rows). On any thread.
  absl::StatusOr<std::vector<double>> Denominators(const std::vector<HostTensor>& targets,
                                                   int64_t start, int64_t rows) const;

  // Returns each loss's weight for a part, from the denominators of the part and the whole: 1 for a
  // sum, and 1 if the whole is 0, so that the result is NaN like the mean of nothing.
  std::vector<double> Shares(const std::vector<double>& part,
                             const std::vector<double>& whole) const;

  // Calls Loss::CheckAddsUp() for each loss, before the first part of a batch is computed.
  // `outputs`: of the first part. Called by one worker's thread.
  absl::Status CheckAddsUp(const std::vector<at::Tensor>& outputs,
                           const std::vector<HostTensor>& targets, bool with_gradient) const;

  // Computes Σ weight · share · loss over rows [start, start + rows) of the targets. Does not wait
  // for the device, unless `staging` is nullptr. `outputs` are the model's for these rows,
  // detached, on the device of the calling worker's thread; those that no loss takes may be
  // undefined. A loss whose share is 0 is left out. `staging`: host memory for the copies of the
  // targets to that device; nullptr: the copies wait for the device. Errors are Loss::Compute()'s.
  absl::StatusOr<ObjectiveValue> Compute(const std::vector<at::Tensor>& outputs,
                                         const std::vector<HostTensor>& targets, int64_t start,
                                         int64_t rows, const std::vector<double>& shares,
                                         GradientRequest gradient,
                                         Staging* staging = nullptr) const;

 private:
  Objective(LossMode mode, std::vector<Loss> losses, const ModelConfig& config);

  absl::Status CheckOne(const std::vector<HostTensor>& targets, size_t i, int64_t rows) const;

  const LossMode mode_;
  const std::vector<Loss> losses_;
  std::vector<bool> takes_output_;
  std::vector<std::string> target_names_;  // in PickTargets()'s order
  std::vector<size_t> first_target_;       // of each loss, in target_names_
  LossSpec client_;                        // kClient: defaults for metrics
  std::vector<size_t> target_batch_dims_;  // of each of target_names_
};

}  // namespace braid
