// Losses that LibTorch does not have. `reduction`: at::Reduction::Mean or Sum, to 0-dim.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"

namespace braid {

// Focal loss of class indices (Lin et al., 2017): −w_y (1 − p_y)^γ log p_y, where p is the softmax
// of `output` over the classes. The mean divides by the sum of the weights w_y, so that γ = 0 is
// cross-entropy. `output`: [rows, classes, …]. `target`: INT64 [rows, …]; `ignore_index` does not
// count. `weights`: [classes].
at::Tensor FocalLoss(const at::Tensor& output, const at::Tensor& target,
                     const std::optional<at::Tensor>& weights, double gamma, int64_t ignore_index,
                     int64_t reduction);

// torchvision.ops.sigmoid_focal_loss. `target`: of the output's shape, in [0, 1]. `alpha`: in
// [0, 1], or -1 for no weighting of the classes.
at::Tensor SigmoidFocalLoss(const at::Tensor& output, const at::Tensor& target, double alpha,
                            double gamma, int64_t reduction);

// Soft Dice loss (Milletari et al., 2016): 1 − (2 Σ p t + smooth) / (Σ p + Σ t + smooth) for each
// row and class, summed over positions, so that the loss of a batch is the mean over its rows.
// `output`: [rows, classes, positions, …]. `target`: INT64 [rows, positions, …], class indices,
// where p is the softmax over the classes and `ignore_index` does not count; or masks of the
// output's shape, in [0, 1], where p is the sigmoid.
at::Tensor DiceLoss(const at::Tensor& output, const at::Tensor& target, double smooth,
                    int64_t ignore_index, int64_t reduction);

// torch.nn.functional.gaussian_nll_loss. `variance`: of the mean's shape, or without its last
// dimension, or with one dimension of size 1. The loss is NaN where the variance is negative.
at::Tensor GaussianNllLoss(const at::Tensor& mean, const at::Tensor& target,
                           const at::Tensor& variance, bool full, double eps, int64_t reduction);

}  // namespace braid
