#include "server/training/loss/loss_functions.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "ATen/TensorOperators.h"
#include "ATen/ops/binary_cross_entropy_with_logits.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/GradMode.h"

namespace braid {
namespace {

at::Tensor Reduced(const at::Tensor& values, int64_t reduction) {
  return reduction == at::Reduction::Mean ? values.mean() : values.sum();
}

// Returns (1 − p)^gamma. The derivative of a power below 1 is infinite at 0.
at::Tensor Focus(const at::Tensor& complement, double gamma) {
  return complement.clamp_min(std::numeric_limits<float>::min()).pow(gamma);
}

}  // namespace

at::Tensor FocalLoss(const at::Tensor& output, const at::Tensor& target,
                     const std::optional<at::Tensor>& weights, double gamma, int64_t ignore_index,
                     int64_t reduction) {
  const at::Tensor ignored = target.eq(ignore_index);
  const at::Tensor classes = target.masked_fill(ignored, 0);
  const at::Tensor log_p = output.log_softmax(1).gather(1, classes.unsqueeze(1)).squeeze(1);
  const at::Tensor weight =
      (weights ? weights->take(classes) : at::ones_like(log_p)).masked_fill(ignored, 0);
  const at::Tensor sum = (-weight * Focus(-log_p.expm1(), gamma) * log_p).sum();
  return reduction == at::Reduction::Mean ? sum / weight.sum() : sum;
}

at::Tensor SigmoidFocalLoss(const at::Tensor& output, const at::Tensor& target, double alpha,
                            double gamma, int64_t reduction) {
  const at::Tensor p = output.sigmoid();
  const at::Tensor complement = p * (1 - target) + (1 - p) * target;
  at::Tensor loss =
      at::binary_cross_entropy_with_logits(output, target, {}, {}, at::Reduction::None) *
      Focus(complement, gamma);
  if (alpha >= 0) {
    loss = (alpha * target + (1 - alpha) * (1 - target)) * loss;
  }
  return Reduced(loss, reduction);
}

at::Tensor DiceLoss(const at::Tensor& output, const at::Tensor& target, double smooth,
                    int64_t ignore_index, int64_t reduction) {
  at::Tensor p;
  at::Tensor t;
  if (target.is_floating_point()) {
    p = output.sigmoid();
    t = target;
  } else {
    const at::Tensor indices = target.unsqueeze(1);
    const at::Tensor ignored = indices.eq(ignore_index);
    p = output.softmax(1).masked_fill(ignored, 0);
    t = at::zeros_like(output)
            .scatter_(1, indices.masked_fill(ignored, 0), 1)
            .masked_fill_(ignored, 0);
  }
  p = p.flatten(2);
  t = t.flatten(2);
  const at::Tensor overlap = (2 * (p * t).sum(2) + smooth) / (p.sum(2) + t.sum(2) + smooth);
  return Reduced(1 - overlap, reduction);
}

at::Tensor GaussianNllLoss(const at::Tensor& mean, const at::Tensor& target,
                           const at::Tensor& variance, bool full, double eps, int64_t reduction) {
  const at::Tensor shaped = variance.dim() < mean.dim() ? variance.unsqueeze(-1) : variance;
  const at::Tensor clamped =
      at::where(shaped.lt(0), std::numeric_limits<double>::quiet_NaN(), shaped);
  {
    const c10::AutoGradMode no_grad(false);
    clamped.clamp_(eps);
  }
  at::Tensor loss = 0.5 * (clamped.log() + (mean - target).square() / clamped);
  if (full) {
    loss = loss + 0.5 * std::log(2 * std::numbers::pi);
  }
  return Reduced(loss, reduction);
}

}  // namespace braid
