#include "server/training/optim/optimizer_spec.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/training/number_checks.h"

namespace braid {
namespace {

absl::Status Check(const SgdSpec& spec) {
  const std::string where = "optimizer.sgd.";
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr", spec.lr));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "momentum", spec.momentum));
  BRAID_RETURN_IF_ERROR(CheckRange(where + "dampening", spec.dampening,
                                   std::isfinite(spec.dampening), "a finite number"));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "weight_decay", spec.weight_decay));
  if (spec.nesterov && (spec.momentum == 0 || spec.dampening != 0)) {
    return InvalidField(where + "nesterov", "needs momentum above 0 and dampening 0");
  }
  return absl::OkStatus();
}

absl::Status Check(const AdamSpec& spec) {
  const std::string where = spec.decoupled_weight_decay ? "optimizer.adamw." : "optimizer.adam.";
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr", spec.lr));
  BRAID_RETURN_IF_ERROR(CheckBelowOne(where + "beta1", spec.beta1));
  BRAID_RETURN_IF_ERROR(CheckBelowOne(where + "beta2", spec.beta2));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "eps", spec.eps));
  return CheckNotNegative(where + "weight_decay", spec.weight_decay);
}

absl::Status Check(const RmsPropSpec& spec) {
  const std::string where = "optimizer.rmsprop.";
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr", spec.lr));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "alpha", spec.alpha));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "eps", spec.eps));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "weight_decay", spec.weight_decay));
  return CheckNotNegative(where + "momentum", spec.momentum);
}

absl::Status Check(const AdagradSpec& spec) {
  const std::string where = "optimizer.adagrad.";
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr", spec.lr));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "lr_decay", spec.lr_decay));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "weight_decay", spec.weight_decay));
  BRAID_RETURN_IF_ERROR(
      CheckNotNegative(where + "initial_accumulator_value", spec.initial_accumulator_value));
  return CheckNotNegative(where + "eps", spec.eps);
}

absl::string_view Name(const SgdSpec&) { return "SGD"; }
absl::string_view Name(const AdamSpec& spec) {
  return spec.decoupled_weight_decay ? "AdamW" : "Adam";
}
absl::string_view Name(const RmsPropSpec&) { return "RMSprop"; }
absl::string_view Name(const AdagradSpec&) { return "Adagrad"; }

}  // namespace

absl::Status CheckOptimizer(const OptimizerSpec& spec) {
  return std::visit([](const auto& kind) { return Check(kind); }, spec);
}

absl::string_view OptimizerName(const OptimizerSpec& spec) {
  return std::visit([](const auto& kind) { return Name(kind); }, spec);
}

bool TakesMomentum(const OptimizerSpec& spec) {
  return std::holds_alternative<SgdSpec>(spec) || std::holds_alternative<RmsPropSpec>(spec);
}

}  // namespace braid
