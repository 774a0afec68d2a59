#include "server/parallel/sync_batch_norm.h"

#include <optional>
#include <tuple>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/batch_norm_ops.h"
#include "ATen/ops/batch_norm_update_stats.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/instance_norm_ops.h"
#include "ATen/ops/native_batch_norm.h"
#include "ATen/ops/native_batch_norm_backward.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/GradMode.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/library.h"

namespace braid {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Part = BatchNormExchange::Part;
using MaybeTensor = std::optional<at::Tensor>;

thread_local const BatchNormSeat* seat_of_thread = nullptr;

// A kernel answers by throwing.
std::vector<Part> AllGather(const Part& part) {
  TORCH_CHECK(seat_of_thread != nullptr,
              "the gradient of a synchronized batch norm outside of its step");
  auto parts = seat_of_thread->exchange.AllGather(*seat_of_thread, part);
  TORCH_CHECK(parts.ok(), parts.status().message());
  return *std::move(parts);
}

struct Statistics {
  int64_t count;
  at::Tensor mean;
  at::Tensor deviation;  // the sum of the squared differences from the mean
};

Part LocalStatistics(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const at::Tensor x = input.to(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (x.numel() == 0) {
    return {0, at::zeros({2, channels}, x.options())};
  }
  const int64_t count = x.numel() / channels;
  const auto [mean, variance] = at::batch_norm_update_stats(x, {}, {}, /*momentum=*/0);
  return {count, at::stack({mean, variance * count})};
}

// By Chan's formula, in the order of the members: each comes to the same bits.
Statistics Merge(const std::vector<Part>& parts) {
  const at::Tensor zeros = at::zeros_like(parts.front().values[0]);
  Statistics whole{0, zeros, zeros};
  for (const Part& part : parts) {
    if (part.count == 0) {
      continue;
    }
    const auto before = static_cast<double>(whole.count);
    whole.count += part.count;
    const double share = static_cast<double>(part.count) / static_cast<double>(whole.count);
    const at::Tensor difference = part.values[0] - whole.mean;
    whole.mean = whole.mean + difference * share;
    whole.deviation = whole.deviation + part.values[1] + difference * difference * (before * share);
  }
  return whole;
}

Statistics StatisticsOfAll(const at::Tensor& input) {
  const c10::AutoGradMode no_grad(false);
  Statistics whole = Merge(AllGather(LocalStatistics(input)));
  TORCH_CHECK_VALUE(whole.count > 1,
                    "Expected more than 1 value per channel when training, got input size ",
                    input.sizes());
  return whole;
}

void UpdateRunning(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (running.defined()) {
    const c10::AutoGradMode no_grad(false);
    running.copy_(running * (1 - momentum) + now * momentum);
  }
}

// The whole batch's gradient in each of the local inputs, in the type of the statistics. `sums`:
// over all members, of the output's gradient and of its product with the normalized input.
at::Tensor InputGradient(const at::Tensor& gradient, const at::Tensor& input,
                         const at::Tensor& weight, const at::Tensor& mean, const at::Tensor& invstd,
                         const at::Tensor& sums, int64_t count) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = -1;
  const auto of_channel = [&](const at::Tensor& value) { return value.view(shape); };
  const at::Tensor scale = weight * invstd;
  at::Tensor result = input.to(mean.scalar_type()) - of_channel(mean);
  result.mul_(of_channel(scale * invstd * sums[1] / -count));
  result.addcmul_(gradient.to(mean.scalar_type()), of_channel(scale));
  return result.sub_(of_channel(scale * sums[0] / count));
}

// Normalizes by statistics that depend on the inputs of all members. LibTorch's kernels do what
// concerns the local rows: with given statistics, as in evaluation.
struct Normalization : torch::autograd::Function<Normalization> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& variance, int64_t count,
                            double eps) {
    context->save_for_backward({input, weight, mean, variance});
    context->saved_data["count"] = count;
    context->saved_data["eps"] = eps;
    if (input.numel() == 0) {
      return at::empty_like(input);
    }
    const c10::ScalarType type = mean.scalar_type();
    return std::get<0>(at::native_batch_norm(input, weight.to(type), bias.to(type), mean, variance,
                                             /*training=*/false, /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "a synchronized batch norm has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& mean = saved[2];
    const at::Tensor& variance = saved[3];
    const double eps = context->saved_data["eps"].toDouble();
    const at::Tensor weight = saved[1].to(mean.scalar_type());
    at::Tensor weight_gradient = at::zeros_like(mean);
    at::Tensor bias_gradient = at::zeros_like(mean);
    if (input.numel() > 0) {
      std::tie(std::ignore, weight_gradient, bias_gradient) = at::native_batch_norm_backward(
          gradients[0], input, weight, mean, variance, {}, {}, /*train=*/false, eps,
          /*output_mask=*/{false, true, true});
    }
    at::Tensor input_gradient;
    if (context->needs_input_grad(0)) {
      at::Tensor sums = at::zeros({2, mean.numel()}, mean.options());
      for (const Part& part : AllGather({0, at::stack({bias_gradient, weight_gradient})})) {
        sums += part.values;
      }
      input_gradient = InputGradient(gradients[0], input, weight, mean, (variance + eps).rsqrt(),
                                     sums, context->saved_data["count"].toInt());
      input_gradient = input_gradient.to(input.scalar_type());
    }
    return {input_gradient, weight_gradient, bias_gradient, {}, {}, {}, {}};
  }
};

// The tensor, if it has as many elements as there are channels; undefined if there is none.
at::Tensor OfChannels(const char* name, const MaybeTensor& tensor, int64_t channels) {
  at::Tensor given = tensor.value_or(at::Tensor());
  TORCH_CHECK(!given.defined() || given.numel() == channels, name, " should contain ", channels,
              " elements not ", given.numel());
  return given;
}

at::Tensor BatchNorm(c10::DispatchKeySet keys, const at::Tensor& input, const MaybeTensor& weight,
                     const MaybeTensor& bias, const MaybeTensor& running_mean,
                     const MaybeTensor& running_var, bool training, double momentum, double eps,
                     bool cudnn_enabled) {
  if (seat_of_thread == nullptr || !training) {
    return at::_ops::batch_norm::redispatch(BelowThreadKernels(keys), input, weight, bias,
                                            running_mean, running_var, training, momentum, eps,
                                            cudnn_enabled);
  }
  const int64_t channels = input.size(1);
  at::Tensor scale = OfChannels("weight", weight, channels);
  at::Tensor shift = OfChannels("bias", bias, channels);
  const at::Tensor mean = OfChannels("running_mean", running_mean, channels);
  const at::Tensor variance = OfChannels("running_var", running_var, channels);
  const Statistics whole = StatisticsOfAll(input);
  UpdateRunning(mean, whole.mean, momentum);
  UpdateRunning(variance, whole.deviation / (whole.count - 1), momentum);
  if (!scale.defined()) {
    scale = at::ones_like(whole.mean);
  }
  if (!shift.defined()) {
    shift = at::zeros_like(whole.mean);
  }
  return Normalization::apply(input, scale, shift, whole.mean, whole.deviation / whole.count,
                              whole.count, eps);
}

// LibTorch makes it of batch_norm, over channels of single rows: not to be synchronized.
at::Tensor InstanceNorm(c10::DispatchKeySet keys, const at::Tensor& input,
                        const MaybeTensor& weight, const MaybeTensor& bias,
                        const MaybeTensor& running_mean, const MaybeTensor& running_var,
                        bool use_input_stats, double momentum, double eps, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard without(kThreadKernels);
  return at::_ops::instance_norm::redispatch(BelowThreadKernels(keys), input, weight, bias,
                                             running_mean, running_var, use_input_stats, momentum,
                                             eps, cudnn_enabled);
}

}  // namespace

SyncBatchNormGuard::SyncBatchNormGuard(Gang& gang, size_t group, size_t rank, size_t member,
                                       BatchNormExchange& exchange)
    : seat_{gang, group, rank, member, exchange}, outer_(seat_of_thread) {
  seat_of_thread = &seat_;
}

SyncBatchNormGuard::~SyncBatchNormGuard() { seat_of_thread = outer_; }

}  // namespace braid

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  library.impl("batch_norm", &braid::BatchNorm);
  library.impl("instance_norm", &braid::InstanceNorm);
}
