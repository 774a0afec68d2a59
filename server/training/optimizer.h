// Updates the primary's flat parameters, with LibTorch's fused kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "server/parallel/flat_parameters.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field ("optimizer.sgd.lr") that is out of range.
absl::Status CheckOptimizer(const OptimizerSpec& spec);
// `spec` with `changes`. INVALID_ARGUMENT naming the field ("hyper_parameters.lr") that is out of
// range or not this optimizer's.
absl::StatusOr<OptimizerSpec> WithHyperParameters(OptimizerSpec spec,
                                                  const HyperParameters& changes);

// Holds the optimizer's state, flat like the parameters. Used on the primary's worker.
class Optimizer {
 public:
  explicit Optimizer(const FlatParameters& parameters);

  // One update by `spec`, of the parameters that were `reached`: the others keep value and state,
  // as PyTorch's do where the gradient is None.
  void Update(const FlatParameters& parameters, const std::vector<bool>& reached,
              const OptimizerSpec& spec);

 private:
  // Neighbouring parameters of one buffer that have been updated equally often.
  struct Range {
    size_t buffer;
    int64_t offset;
    int64_t numel;
    int64_t updates;
  };
  using Tensors = std::vector<at::Tensor>;

  std::vector<Range> Ranges(const std::vector<FlatSlot>& slots,
                            const std::vector<bool>& reached) const;
  void UpdateSgd(const FlatParameters& parameters, const std::vector<Range>& ranges,
                 const SgdSpec& spec);
  void UpdateAdamW(const FlatParameters& parameters, const std::vector<Range>& ranges,
                   const AdamWSpec& spec);
  // One a flat buffer, of its size and dtype, zero; made when first used.
  static Tensors& Lazy(Tensors* state, const FlatParameters& parameters);

  // How often each parameter has been updated.
  std::vector<int64_t> updates_;
  // SGD's momentum, or AdamW's first and second moments.
  Tensors first_;
  Tensors second_;
};

}  // namespace braid
