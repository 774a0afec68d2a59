// The central loss: one number over the whole batch, and its gradient with respect to an output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"
#include "server/training/trainer_spec.h"

namespace braid {

enum class LossKind { kCrossEntropy, kMse };

struct LossValue {
  double loss = 0;
  // Of the loss's output; undefined if it was not asked for.
  at::Tensor output_gradient;
};

// Immutable. As torch.nn.functional.cross_entropy and mse_loss.
class Loss {
 public:
  // INVALID_ARGUMENT naming the field ("loss.name") that is wrong for a model of `config`.
  static absl::StatusOr<Loss> Create(LossSpec spec, const ModelConfig& config);

  // The target among `targets`, of `rows` rows. INVALID_ARGUMENT naming targets[i] if it is
  // missing, not alone or of other rows.
  absl::StatusOr<HostTensor> PickTarget(const std::vector<HostTensor>& targets, int64_t rows) const;

  // The loss of `output` (gathered, detached) and `target` on the output's device, on the thread of
  // that device's worker. INVALID_ARGUMENT, naming targets[0], for a datatype or shape that does
  // not go with the output, a class index that is out of range, or NaN.
  absl::StatusOr<LossValue> Compute(const at::Tensor& output, const HostTensor& target,
                                    bool with_gradient) const;

  // Which of the model's outputs it takes.
  size_t output_index() const { return output_index_; }
  // With all defaults filled in.
  const LossSpec& spec() const { return spec_; }

 private:
  Loss(LossSpec spec, LossKind kind, size_t output_index)
      : spec_(std::move(spec)), kind_(kind), output_index_(output_index) {}

  absl::Status CheckTarget(const at::Tensor& output, const HostTensor& target) const;
  absl::Status CheckClasses(const at::Tensor& output, const at::Tensor& target) const;
  at::Tensor Evaluate(const at::Tensor& output, const at::Tensor& target) const;

  LossSpec spec_;
  LossKind kind_;
  size_t output_index_;
};

}  // namespace braid
