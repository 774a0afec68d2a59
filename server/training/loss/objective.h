// What a trainer minimizes: the sum of its losses, each times its weight.
//
// A batch may be computed in parts, by several replicas or one after the other. A mean over the
// batch is then the sum over the parts of each part's mean times its share of what the whole mean
// divides by; so are the gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"
#include "server/training/loss/loss.h"
#include "server/training/trainer_spec.h"

namespace braid {

struct ObjectiveValue {
  double loss = 0;  // the weighted sum
  // One for each output of the model; undefined where no loss depends on it, all undefined unless
  // asked for.
  std::vector<at::Tensor> output_gradients;
};

struct GradientRequest {
  bool wanted = true;
  // Multiplies the loss before it is differentiated, not the loss that is reported.
  double scale = 1;
};

// Immutable, thread-safe.
class Objective {
 public:
  // The losses of `spec`, whose defaults are filled in. INVALID_ARGUMENT naming losses,
  // losses[i].name, … or unweighted_mean.
  static absl::StatusOr<std::shared_ptr<const Objective>> Create(TrainerSpec* spec,
                                                                 const ModelConfig& config);

  // One target for each loss, in the losses' order, or with LossMode::kClient measured()'s alone,
  // from a request's `targets`; each is named by its place there, "targets[1]", which is how the
  // functions below name it. INVALID_ARGUMENT for a target that is not one of them, is there twice,
  // missing, or not of `rows` rows. None with LossMode::kModel, where the targets are inputs of the
  // model and not looked at.
  absl::StatusOr<std::vector<HostTensor>> PickTargets(const std::vector<HostTensor>& targets,
                                                      int64_t rows) const;

  // Which of the model's outputs the losses take.
  const std::vector<bool>& takes_output() const { return takes_output_; }
  const std::vector<Loss>& losses() const { return losses_; }
  // Whose target metrics are measured by, and the output that they are of: the first loss's; with
  // LossMode::kClient "target" and the first output.
  const LossSpec& measured() const;
  size_t measured_output() const;
  // One of the losses is a module, which may draw random numbers.
  bool has_module() const;

  // Each loss's Denominator() over rows [start, start + rows). On any thread.
  absl::StatusOr<std::vector<double>> Denominators(const std::vector<HostTensor>& targets,
                                                   int64_t start, int64_t rows) const;

  // Each loss's share of the whole that a part has, by their denominators: 1 for a sum, and where
  // the whole is 0, so that what comes out is the NaN that a mean over nothing is.
  std::vector<double> Shares(const std::vector<double>& part,
                             const std::vector<double>& whole) const;

  // Loss::CheckAddsUp() of each loss, before the first part of a batch is computed. `outputs`: of
  // the first part, by one worker's thread.
  absl::Status CheckAddsUp(const std::vector<at::Tensor>& outputs,
                           const std::vector<HostTensor>& targets, bool with_gradient) const;

  // Σ weight · share · loss over rows [start, start + rows) of the targets. `outputs` are the
  // model's for these rows, detached, on the device of the calling worker's thread; those that no
  // loss takes may be undefined. A loss whose share is 0 is left out. Errors are Loss::Compute()'s.
  absl::StatusOr<ObjectiveValue> Compute(const std::vector<at::Tensor>& outputs,
                                         const std::vector<HostTensor>& targets, int64_t start,
                                         int64_t rows, const std::vector<double>& shares,
                                         GradientRequest gradient) const;

 private:
  Objective(LossMode mode, std::vector<Loss> losses, size_t outputs);

  // In PickTargets()'s order.
  std::vector<std::string> TargetNames() const;
  absl::Status CheckOne(const std::vector<HostTensor>& targets, size_t i, int64_t rows) const;

  const LossMode mode_;
  const std::vector<Loss> losses_;
  std::vector<bool> takes_output_;
  LossSpec client_;  // what is known of the client's loss
};

}  // namespace braid
