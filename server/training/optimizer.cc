#include "server/training/optimizer.h"

#include <cmath>

#include "ATen/ops/_fused_adamw.h"
#include "ATen/ops/_fused_sgd.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"

namespace braid {
namespace {

absl::Status CheckNotNegative(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat(value, " is out of range; expected at least 0"));
}

absl::Status CheckBeta(absl::string_view field, double value) {
  if (value >= 0 && value < 1) {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat(value, " is out of range; expected 0 to less than 1"));
}

absl::Status Check(const SgdSpec& spec, const std::string& where) {
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr", spec.lr));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "momentum", spec.momentum));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "weight_decay", spec.weight_decay));
  if (!std::isfinite(spec.dampening)) {
    return InvalidField(where + "dampening",
                        absl::StrCat(spec.dampening, " is not finite; expected a number"));
  }
  if (spec.nesterov && (spec.momentum == 0 || spec.dampening != 0)) {
    return InvalidField(where + "nesterov", "needs momentum above 0 and dampening 0");
  }
  return absl::OkStatus();
}

absl::Status Check(const AdamWSpec& spec, const std::string& where) {
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr", spec.lr));
  BRAID_RETURN_IF_ERROR(CheckBeta(where + "beta1", spec.beta1));
  BRAID_RETURN_IF_ERROR(CheckBeta(where + "beta2", spec.beta2));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "eps", spec.eps));
  return CheckNotNegative(where + "weight_decay", spec.weight_decay);
}

}  // namespace

absl::Status CheckOptimizer(const OptimizerSpec& spec) {
  if (const auto* sgd = std::get_if<SgdSpec>(&spec)) {
    return Check(*sgd, "optimizer.sgd.");
  }
  return Check(std::get<AdamWSpec>(spec), "optimizer.adamw.");
}

absl::StatusOr<OptimizerSpec> WithHyperParameters(OptimizerSpec spec,
                                                  const HyperParameters& changes) {
  constexpr char kWhere[] = "hyper_parameters.";
  if (auto* adamw = std::get_if<AdamWSpec>(&spec)) {
    if (changes.momentum) {
      return InvalidField("hyper_parameters.momentum", "is SGD's; AdamW has none");
    }
    adamw->lr = changes.lr.value_or(adamw->lr);
    adamw->weight_decay = changes.weight_decay.value_or(adamw->weight_decay);
    BRAID_RETURN_IF_ERROR(Check(*adamw, kWhere));
    return spec;
  }
  auto& sgd = std::get<SgdSpec>(spec);
  if (changes.momentum && (sgd.momentum == 0) != (*changes.momentum == 0)) {
    return InvalidField("hyper_parameters.momentum",
                        absl::StrCat(*changes.momentum, " for an optimizer created with momentum ",
                                     sgd.momentum, ": it cannot be turned on or off later"));
  }
  sgd.lr = changes.lr.value_or(sgd.lr);
  sgd.weight_decay = changes.weight_decay.value_or(sgd.weight_decay);
  sgd.momentum = changes.momentum.value_or(sgd.momentum);
  BRAID_RETURN_IF_ERROR(Check(sgd, kWhere));
  return spec;
}

Optimizer::Optimizer(const FlatParameters& parameters) : updates_(parameters.slots().size(), 0) {}

void Optimizer::Update(const FlatParameters& parameters, const std::vector<bool>& reached,
                       const OptimizerSpec& spec) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<Range> ranges = Ranges(parameters.slots(), reached);
  if (ranges.empty()) {
    return;
  }
  if (const auto* sgd = std::get_if<SgdSpec>(&spec)) {
    UpdateSgd(parameters, ranges, *sgd);
  } else {
    UpdateAdamW(parameters, ranges, std::get<AdamWSpec>(spec));
  }
  for (size_t p = 0; p < reached.size(); ++p) {
    updates_[p] += reached[p] ? 1 : 0;
  }
}

std::vector<Optimizer::Range> Optimizer::Ranges(const std::vector<FlatSlot>& slots,
                                                const std::vector<bool>& reached) const {
  std::vector<Range> ranges;
  for (size_t p = 0; p < slots.size(); ++p) {
    if (!reached[p]) {
      continue;
    }
    const FlatSlot& slot = slots[p];
    if (!ranges.empty() && ranges.back().buffer == slot.buffer &&
        ranges.back().updates == updates_[p] &&
        ranges.back().offset + ranges.back().numel == slot.offset) {
      ranges.back().numel += slot.padded;
    } else {
      ranges.push_back({slot.buffer, slot.offset, slot.padded, updates_[p]});
    }
  }
  return ranges;
}

void Optimizer::UpdateSgd(const FlatParameters& parameters, const std::vector<Range>& ranges,
                          const SgdSpec& spec) {
  for (const Range& range : ranges) {
    const auto cut = [&range](const Tensors& buffers) {
      return buffers[range.buffer].narrow(0, range.offset, range.numel);
    };
    Tensors momentum;
    if (spec.momentum != 0) {
      momentum.push_back(cut(Lazy(&first_, parameters)));
    }
    at::_fused_sgd_({cut(parameters.values())}, {cut(parameters.gradients())}, momentum,
                    spec.weight_decay, spec.momentum, spec.lr, spec.dampening, spec.nesterov,
                    /*maximize=*/false, /*is_first_step=*/range.updates == 0);
  }
}

void Optimizer::UpdateAdamW(const FlatParameters& parameters, const std::vector<Range>& ranges,
                            const AdamWSpec& spec) {
  const Tensors& averages = Lazy(&first_, parameters);
  const Tensors& squares = Lazy(&second_, parameters);
  for (const Range& range : ranges) {
    const auto cut = [&range](const Tensors& buffers) {
      return buffers[range.buffer].narrow(0, range.offset, range.numel);
    };
    const at::Tensor updates =
        at::full({}, static_cast<double>(range.updates + 1),
                 parameters.values()[range.buffer].options().dtype(at::kFloat));
    at::_fused_adamw_({cut(parameters.values())}, {cut(parameters.gradients())}, {cut(averages)},
                      {cut(squares)}, /*max_exp_avg_sqs=*/{}, {updates}, spec.lr, spec.beta1,
                      spec.beta2, spec.weight_decay, spec.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
}

Optimizer::Tensors& Optimizer::Lazy(Tensors* state, const FlatParameters& parameters) {
  if (state->empty()) {
    for (const at::Tensor& values : parameters.values()) {
      state->push_back(at::zeros_like(values));
    }
  }
  return *state;
}

}  // namespace braid
