#include "server/parallel/sync_batch_norm.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/_native_batch_norm_legit_ops.h"
#include "ATen/ops/batch_norm_ops.h"
#include "ATen/ops/batch_norm_update_stats.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/instance_norm_ops.h"
#include "ATen/ops/native_batch_norm.h"
#include "ATen/ops/native_batch_norm_backward.h"
#include "ATen/ops/native_batch_norm_backward_ops.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/function.h"
#include "torch/library.h"

namespace braid {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Part = BatchNormExchange::Part;
using MaybeTensor = std::optional<at::Tensor>;

thread_local const BatchNormSeat* seat_of_thread = nullptr;

// Throws errors: kernels cannot return a Status.
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

// Merges statistics by Chan's formula, in the order of the members, so that all get the same bits.
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

// Returns the gradient of the local inputs, in the datatype of the statistics. sums: sums over all
// members of the output's gradient and of its product with the normalized input.
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

// Normalizes by given statistics, as in evaluation mode.
at::Tensor Normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& mean, const at::Tensor& variance, double eps) {
  if (input.numel() == 0) {
    return at::empty_like(input);
  }
  const c10::ScalarType type = mean.scalar_type();
  return std::get<0>(at::native_batch_norm(input, weight.to(type), bias.to(type), mean, variance,
                                           /*training=*/false, /*momentum=*/0, eps));
}

// Returns the row-major tensor if there is one row. LibTorch's kernel reads it by strides that it
// infers, and one row fits several layouts, so it may read it in the wrong order.
at::Tensor InKnownLayout(const at::Tensor& tensor) {
  return tensor.size(0) == 1 ? tensor.contiguous() : tensor;
}

// Returns the gradients of input, weight and bias. with_input: computes the input's gradient, which
// needs an exchange with the other members.
std::tuple<at::Tensor, at::Tensor, at::Tensor> NormalizationGradients(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight_of_any_type,
    const at::Tensor& mean, const at::Tensor& variance, double eps, bool with_input) {
  const at::Tensor weight = weight_of_any_type.to(mean.scalar_type());
  at::Tensor weight_gradient = at::zeros_like(mean);
  at::Tensor bias_gradient = at::zeros_like(mean);
  const at::Tensor invstd = (variance + eps).rsqrt();
  if (input.numel() > 0) {
    // The GPU kernel requires the saved statistics also in evaluation mode.
    std::tie(std::ignore, weight_gradient, bias_gradient) =
        at::native_batch_norm_backward(InKnownLayout(gradient), InKnownLayout(input), weight, mean,
                                       variance, mean, invstd, /*train=*/false, eps,
                                       /*output_mask=*/{false, true, true});
  }
  at::Tensor input_gradient;
  if (with_input) {
    at::Tensor sums = at::zeros({2, mean.numel()}, mean.options());
    int64_t count = 0;
    const int64_t own = input.numel() / std::max<int64_t>(input.size(1), 1);
    for (const Part& part : AllGather({own, at::stack({bias_gradient, weight_gradient})})) {
      sums += part.values;
      count += part.count;
    }
    input_gradient =
        InputGradient(gradient, input, weight, mean, invstd, sums, count).to(input.scalar_type());
  }
  return {input_gradient, weight_gradient, bias_gradient};
}

// Autograd function for statistics that depend on the inputs of all members. LibTorch's kernels for
// evaluation mode compute the part of the local rows.
struct Normalization : torch::autograd::Function<Normalization> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& variance, double eps) {
    context->save_for_backward({input, weight, mean, variance});
    context->saved_data["eps"] = eps;
    return Normalize(input, weight, bias, mean, variance, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "a synchronized batch norm has no second derivative");
    const variable_list saved = context->get_saved_variables();
    auto [input, weight, bias] =
        NormalizationGradients(gradients[0], saved[0], saved[1], saved[2], saved[3],
                               context->saved_data["eps"].toDouble(), context->needs_input_grad(0));
    return {input, weight, bias, {}, {}, {}};
  }
};

// Returns the tensor, or an undefined one. Throws unless it has one element per channel.
at::Tensor OfChannels(const char* name, const MaybeTensor& tensor, int64_t channels) {
  at::Tensor given = tensor.value_or(at::Tensor());
  TORCH_CHECK(!given.defined() || given.numel() == channels, name, " should contain ", channels,
              " elements not ", given.numel());
  return given;
}

// Defaults for a batch norm without parameters.
at::Tensor ScaleOr(const MaybeTensor& weight, const at::Tensor& mean) {
  return weight && weight->defined() ? *weight : at::ones_like(mean);
}
at::Tensor ShiftOr(const MaybeTensor& bias, const at::Tensor& mean) {
  return bias && bias->defined() ? *bias : at::zeros_like(mean);
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
  const at::Tensor scale = OfChannels("weight", weight, channels);
  const at::Tensor shift = OfChannels("bias", bias, channels);
  const at::Tensor mean = OfChannels("running_mean", running_mean, channels);
  const at::Tensor variance = OfChannels("running_var", running_var, channels);
  const Statistics whole = StatisticsOfAll(input);
  UpdateRunning(mean, whole.mean, momentum);
  UpdateRunning(variance, whole.deviation / (whole.count - 1), momentum);
  return Normalization::apply(input, ScaleOr(scale, whole.mean), ShiftOr(shift, whole.mean),
                              whole.mean, whole.deviation / whole.count, eps);
}

at::Tensor UpdatedRunning(const at::Tensor& running, const at::Tensor& now, double momentum) {
  return (running * (1 - momentum) + now * momentum).to(running.scalar_type());
}

// Batch norm of exported graphs: modifies no tensor, and returns what the gradient needs.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> ExportedBatchNorm(
    c10::DispatchKeySet keys, const at::Tensor& input, const MaybeTensor& weight,
    const MaybeTensor& bias, const at::Tensor& running_mean, const at::Tensor& running_var,
    bool training, double momentum, double eps) {
  if (seat_of_thread == nullptr || !training) {
    return at::_ops::_native_batch_norm_legit_functional::redispatch(
        BelowThreadKernels(keys), input, weight, bias, running_mean, running_var, training,
        momentum, eps);
  }
  const Statistics whole = StatisticsOfAll(input);
  const at::Tensor variance = whole.deviation / whole.count;
  return {Normalize(input, ScaleOr(weight, whole.mean), ShiftOr(bias, whole.mean), whole.mean,
                    variance, eps),
          whole.mean, (variance + eps).rsqrt(), UpdatedRunning(running_mean, whole.mean, momentum),
          UpdatedRunning(running_var, whole.deviation / (whole.count - 1), momentum)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ExportedBatchNormWithoutRunning(
    c10::DispatchKeySet keys, const at::Tensor& input, const MaybeTensor& weight,
    const MaybeTensor& bias, bool training, double momentum, double eps) {
  if (seat_of_thread == nullptr || !training) {
    return at::_ops::_native_batch_norm_legit_no_stats::redispatch(
        BelowThreadKernels(keys), input, weight, bias, training, momentum, eps);
  }
  const Statistics whole = StatisticsOfAll(input);
  const at::Tensor variance = whole.deviation / whole.count;
  return {Normalize(input, ScaleOr(weight, whole.mean), ShiftOr(bias, whole.mean), whole.mean,
                    variance, eps),
          whole.mean, (variance + eps).rsqrt()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ExportedBatchNormBackward(
    c10::DispatchKeySet keys, const at::Tensor& gradient, const at::Tensor& input,
    const MaybeTensor& weight, const MaybeTensor& running_mean, const MaybeTensor& running_var,
    const MaybeTensor& mean, const MaybeTensor& invstd, bool train, double eps,
    std::array<bool, 3> output_mask) {
  // In an autograd graph it is an instance norm's: batch norms have another node there.
  if (seat_of_thread == nullptr || !train || torch::autograd::get_current_node() != nullptr) {
    return at::_ops::native_batch_norm_backward::redispatch(
        BelowThreadKernels(keys), gradient, input, weight, running_mean, running_var, mean, invstd,
        train, eps, output_mask);
  }
  return NormalizationGradients(gradient, input, ScaleOr(weight, *mean), *mean,
                                invstd->pow(-2) - eps, eps, output_mask[0]);
}

// LibTorch implements instance norm by batch_norm over channels of single rows. It must not be
// synchronized.
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

BatchNormExchange::BatchNormExchange(size_t members)
    : slots_{std::vector<Slot>(members), std::vector<Slot>(members)}, rounds_(members) {}

absl::StatusOr<std::vector<BatchNormExchange::Part>> BatchNormExchange::AllGather(
    const BatchNormSeat& seat, const Part& part) {
  uint64_t round = 0;
  {
    const absl::MutexLock lock(&mu_);
    round = ++rounds_[seat.member];
    slots_[round % 2][seat.member] = {round, part};
  }
  BRAID_RETURN_IF_ERROR(seat.worker_group.Barrier(seat.group, seat.rank));
  std::vector<Part> parts;
  {
    const absl::MutexLock lock(&mu_);
    for (const Slot& slot : slots_[round % 2]) {
      if (slot.round != round || slot.part.values.sizes() != part.values.sizes()) {
        return absl::FailedPreconditionError("replicas are at different batch norm layers");
      }
      parts.push_back(slot.part);
    }
  }
  for (Part& each : parts) {
    each.values = each.values.to(part.values.device());
  }
  return parts;
}

SyncBatchNormGuard::SyncBatchNormGuard(WorkerGroup& worker_group, size_t group, size_t rank,
                                       size_t member, BatchNormExchange& exchange)
    : seat_{worker_group, group, rank, member, exchange}, outer_(seat_of_thread) {
  seat_of_thread = &seat_;
}

SyncBatchNormGuard::~SyncBatchNormGuard() { seat_of_thread = outer_; }

}  // namespace braid

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  library.impl("batch_norm", &braid::BatchNorm);
  library.impl("instance_norm", &braid::InstanceNorm);
  library.impl("_native_batch_norm_legit_functional", &braid::ExportedBatchNorm);
  library.impl("_native_batch_norm_legit.no_stats", &braid::ExportedBatchNormWithoutRunning);
  library.impl("native_batch_norm_backward", &braid::ExportedBatchNormBackward);
}
