#include "server/training/optim/optimizer_kernels.h"

#include <algorithm>
#include <cstddef>

#include "ATen/Parallel.h"
#include "ATen/ops/_fused_adagrad.h"
#include "ATen/ops/_fused_adam.h"
#include "ATen/ops/_fused_adamw.h"
#include "ATen/ops/_fused_sgd.h"
#include "ATen/ops/full.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

// Returns the number of this update once per slice, the format of the fused kernels.
Tensors Counts(const Tensors& values, int64_t updates) {
  const at::Tensor count =
      at::full({}, static_cast<double>(updates + 1), values.front().options().dtype(at::kFloat));
  return Tensors(values.size(), count);
}

// Replaces the fused CPU kernel for datatypes for which it stores only the remainder after whole
// vectors.
void UpdateReduced(const SgdSpec& spec, const GroupValues& values, int64_t updates,
                   UpdateSlices& slices) {
  for (size_t s = 0; s < slices.values.size(); ++s) {
    at::Tensor step = slices.gradients[s];
    if (values.weight_decay != 0) {
      step = step.add(slices.values[s], values.weight_decay);
    }
    if (values.momentum != 0) {
      const at::Tensor& buffer = slices.state["momentum_buffer"][s];
      if (updates == 0) {
        buffer.copy_(step);
      } else {
        buffer.mul_(values.momentum).add_(step, 1 - spec.dampening);
      }
      step = spec.nesterov ? step.add(buffer, values.momentum) : buffer;
    }
    slices.values[s].add_(step, -values.lr);
  }
}

void Update(const SgdSpec& spec, const GroupValues& values, int64_t updates, UpdateSlices& slices) {
  const at::Tensor& first = slices.values.front();
  if (first.is_cpu() && at::isReducedFloatingType(first.scalar_type())) {
    UpdateReduced(spec, values, updates, slices);
    return;
  }
  const bool momentum = values.momentum != 0;
  at::_fused_sgd_(slices.values, slices.gradients,
                  momentum ? slices.state["momentum_buffer"] : Tensors(), values.weight_decay,
                  values.momentum, values.lr, spec.dampening, spec.nesterov && momentum,
                  /*maximize=*/false, /*is_first_step=*/updates == 0);
}

void Update(const AdamSpec& spec, const GroupValues& values, int64_t updates,
            UpdateSlices& slices) {
  const Tensors& averages = slices.state["exp_avg"];
  const Tensors& squares = slices.state["exp_avg_sq"];
  const Tensors most = spec.amsgrad ? slices.state["max_exp_avg_sq"] : Tensors();
  const Tensors counts = Counts(slices.values, updates);
  if (spec.decoupled_weight_decay) {
    at::_fused_adamw_(slices.values, slices.gradients, averages, squares, most, counts, values.lr,
                      values.momentum, spec.beta2, values.weight_decay, spec.eps, spec.amsgrad,
                      /*maximize=*/false);
  } else {
    at::_fused_adam_(slices.values, slices.gradients, averages, squares, most, counts, values.lr,
                     values.momentum, spec.beta2, values.weight_decay, spec.eps, spec.amsgrad,
                     /*maximize=*/false);
  }
}

void Update(const AdagradSpec& spec, const GroupValues& values, int64_t updates,
            UpdateSlices& slices) {
  at::_fused_adagrad_(slices.values, slices.gradients, slices.state["sum"],
                      Counts(slices.values, updates), values.lr, spec.lr_decay, values.weight_decay,
                      spec.eps, /*maximize=*/false);
}

// Number of elements per block: temporaries stay in the cache.
int64_t BlockSize(const at::Tensor& values) {
  return values.is_cpu() ? int64_t{1 << 15} * at::get_num_threads() : int64_t{1 << 22};
}

// Torch has no fused kernel for it. Each operation here rounds once: a fused multiply-add would
// round once or twice, depending on the element's position in a slice.
void Update(const RmsPropSpec& spec, const GroupValues& values, int64_t, UpdateSlices& slices) {
  for (size_t s = 0; s < slices.values.size(); ++s) {
    const int64_t size = slices.values[s].numel();
    const int64_t block_size = BlockSize(slices.values[s]);
    for (int64_t begin = 0; begin < size; begin += block_size) {
      const auto block = [&](const Tensors& tensors) {
        return tensors.at(s).narrow(0, begin, std::min(block_size, size - begin));
      };
      const at::Tensor value = block(slices.values);
      at::Tensor gradient = block(slices.gradients);
      if (values.weight_decay != 0) {
        gradient = value.mul(values.weight_decay).add_(gradient);
      }
      const at::Tensor square = block(slices.state["square_avg"]);
      square.mul_(spec.alpha).add_(gradient.mul(gradient).mul_(1 - spec.alpha));
      at::Tensor root = square;
      if (spec.centered) {
        const at::Tensor mean = block(slices.state["grad_avg"]);
        mean.add_(gradient.sub(mean).mul_(1 - spec.alpha));
        root = square.sub(mean.mul(mean));
      }
      at::Tensor step = gradient.div(root.sqrt().add_(spec.eps));
      if (values.momentum != 0) {
        step = block(slices.state["momentum_buffer"]).mul_(values.momentum).add_(step);
      }
      value.sub_(step.mul(values.lr));
    }
  }
}

}  // namespace

void UpdateInPlace(const OptimizerSpec& spec, const GroupValues& values, int64_t updates,
                   UpdateSlices& slices) {
  std::visit([&](const auto& kind) { Update(kind, values, updates, slices); }, spec);
}

}  // namespace braid
