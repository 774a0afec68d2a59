#include "server/rpc/training/optimizer_messages.h"

#include <variant>

#include "server/base/status.h"

namespace braid {
namespace {

// Takes over an optional field that is there.
#define BRAID_READ_OPTIONAL(message, field, spec) \
  if ((message).has_##field()) {                  \
    (spec).field = (message).field();             \
  }

SgdSpec ReadSgd(const braid::v1::Sgd& message) {
  SgdSpec spec;
  BRAID_READ_OPTIONAL(message, lr, spec);
  spec.momentum = message.momentum();
  spec.dampening = message.dampening();
  spec.weight_decay = message.weight_decay();
  spec.nesterov = message.nesterov();
  return spec;
}

template <typename Message>
AdamSpec ReadAdam(const Message& message, AdamSpec spec) {
  BRAID_READ_OPTIONAL(message, lr, spec);
  BRAID_READ_OPTIONAL(message, beta1, spec);
  BRAID_READ_OPTIONAL(message, beta2, spec);
  BRAID_READ_OPTIONAL(message, eps, spec);
  BRAID_READ_OPTIONAL(message, weight_decay, spec);
  spec.amsgrad = message.amsgrad();
  return spec;
}

RmsPropSpec ReadRmsProp(const braid::v1::RmsProp& message) {
  RmsPropSpec spec;
  BRAID_READ_OPTIONAL(message, lr, spec);
  BRAID_READ_OPTIONAL(message, alpha, spec);
  BRAID_READ_OPTIONAL(message, eps, spec);
  spec.weight_decay = message.weight_decay();
  spec.momentum = message.momentum();
  spec.centered = message.centered();
  return spec;
}

AdagradSpec ReadAdagrad(const braid::v1::Adagrad& message) {
  AdagradSpec spec;
  BRAID_READ_OPTIONAL(message, lr, spec);
  spec.lr_decay = message.lr_decay();
  spec.weight_decay = message.weight_decay();
  spec.initial_accumulator_value = message.initial_accumulator_value();
  BRAID_READ_OPTIONAL(message, eps, spec);
  return spec;
}

template <typename Message>
void WriteAdam(const AdamSpec& spec, Message* message) {
  message->set_lr(spec.lr);
  message->set_beta1(spec.beta1);
  message->set_beta2(spec.beta2);
  message->set_eps(spec.eps);
  message->set_weight_decay(spec.weight_decay);
  message->set_amsgrad(spec.amsgrad);
}

struct OptimizerWriter {
  braid::v1::Optimizer* message;

  void operator()(const SgdSpec& spec) const {
    auto* sgd = message->mutable_sgd();
    sgd->set_lr(spec.lr);
    sgd->set_momentum(spec.momentum);
    sgd->set_dampening(spec.dampening);
    sgd->set_weight_decay(spec.weight_decay);
    sgd->set_nesterov(spec.nesterov);
  }
  void operator()(const AdamSpec& spec) const {
    if (spec.decoupled_weight_decay) {
      WriteAdam(spec, message->mutable_adamw());
    } else {
      WriteAdam(spec, message->mutable_adam());
    }
  }
  void operator()(const RmsPropSpec& spec) const {
    auto* rmsprop = message->mutable_rmsprop();
    rmsprop->set_lr(spec.lr);
    rmsprop->set_alpha(spec.alpha);
    rmsprop->set_eps(spec.eps);
    rmsprop->set_weight_decay(spec.weight_decay);
    rmsprop->set_momentum(spec.momentum);
    rmsprop->set_centered(spec.centered);
  }
  void operator()(const AdagradSpec& spec) const {
    auto* adagrad = message->mutable_adagrad();
    adagrad->set_lr(spec.lr);
    adagrad->set_lr_decay(spec.lr_decay);
    adagrad->set_weight_decay(spec.weight_decay);
    adagrad->set_initial_accumulator_value(spec.initial_accumulator_value);
    adagrad->set_eps(spec.eps);
  }
};

OneCycleScheduleSpec ReadOneCycle(const braid::v1::Schedule::OneCycle& message) {
  OneCycleScheduleSpec spec;
  spec.max_lr = message.max_lr();
  spec.total_steps = message.total_steps();
  BRAID_READ_OPTIONAL(message, pct_start, spec);
  spec.linear = message.linear();
  BRAID_READ_OPTIONAL(message, cycle_momentum, spec);
  BRAID_READ_OPTIONAL(message, base_momentum, spec);
  BRAID_READ_OPTIONAL(message, max_momentum, spec);
  BRAID_READ_OPTIONAL(message, div_factor, spec);
  BRAID_READ_OPTIONAL(message, final_div_factor, spec);
  spec.three_phase = message.three_phase();
  return spec;
}

PlateauScheduleSpec ReadPlateau(const braid::v1::Schedule::Plateau& message) {
  PlateauScheduleSpec spec;
  // 0 is the wire's way to leave it out.
  spec.interval = message.interval() == 0 ? spec.interval : message.interval();
  spec.maximize = message.maximize();
  BRAID_READ_OPTIONAL(message, factor, spec);
  BRAID_READ_OPTIONAL(message, patience, spec);
  BRAID_READ_OPTIONAL(message, threshold, spec);
  spec.absolute_threshold = message.absolute_threshold();
  spec.cooldown = message.cooldown();
  spec.min_lr = message.min_lr();
  BRAID_READ_OPTIONAL(message, eps, spec);
  return spec;
}

struct ScheduleWriter {
  braid::v1::Schedule* message;

  void operator()(std::monostate) const {}
  void operator()(const StepScheduleSpec& spec) const {
    message->mutable_step()->set_step_size(spec.step_size);
    message->mutable_step()->set_gamma(spec.gamma);
  }
  void operator()(const MultiStepScheduleSpec& spec) const {
    message->mutable_multi_step()->mutable_milestones()->Add(spec.milestones.begin(),
                                                             spec.milestones.end());
    message->mutable_multi_step()->set_gamma(spec.gamma);
  }
  void operator()(const ExponentialScheduleSpec& spec) const {
    message->mutable_exponential()->set_gamma(spec.gamma);
  }
  void operator()(const CosineScheduleSpec& spec) const {
    message->mutable_cosine()->set_t_max(spec.t_max);
    message->mutable_cosine()->set_eta_min(spec.eta_min);
  }
  void operator()(const OneCycleScheduleSpec& spec) const {
    auto* cycle = message->mutable_one_cycle();
    cycle->set_max_lr(spec.max_lr);
    cycle->set_total_steps(spec.total_steps);
    cycle->set_pct_start(spec.pct_start);
    cycle->set_linear(spec.linear);
    cycle->set_cycle_momentum(spec.cycle_momentum);
    cycle->set_base_momentum(spec.base_momentum);
    cycle->set_max_momentum(spec.max_momentum);
    cycle->set_div_factor(spec.div_factor);
    cycle->set_final_div_factor(spec.final_div_factor);
    cycle->set_three_phase(spec.three_phase);
  }
  void operator()(const PlateauScheduleSpec& spec) const {
    auto* plateau = message->mutable_plateau();
    plateau->set_interval(spec.interval);
    plateau->set_maximize(spec.maximize);
    plateau->set_factor(spec.factor);
    plateau->set_patience(spec.patience);
    plateau->set_threshold(spec.threshold);
    plateau->set_absolute_threshold(spec.absolute_threshold);
    plateau->set_cooldown(spec.cooldown);
    plateau->set_min_lr(spec.min_lr);
    plateau->set_eps(spec.eps);
  }
};

}  // namespace

absl::StatusOr<OptimizerSpec> ReadOptimizer(const braid::v1::Optimizer& message) {
  AdamSpec adam;
  switch (message.kind_case()) {
    case braid::v1::Optimizer::kSgd:
      return ReadSgd(message.sgd());
    case braid::v1::Optimizer::kAdam:
      return ReadAdam(message.adam(), adam);
    case braid::v1::Optimizer::kAdamw:
      adam.decoupled_weight_decay = true;
      adam.weight_decay = 1e-2;
      return ReadAdam(message.adamw(), adam);
    case braid::v1::Optimizer::kRmsprop:
      return ReadRmsProp(message.rmsprop());
    case braid::v1::Optimizer::kAdagrad:
      return ReadAdagrad(message.adagrad());
    case braid::v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return InvalidField("optimizer", "is missing; expected sgd, adam, adamw, rmsprop or adagrad");
}

void WriteOptimizer(const OptimizerSpec& spec, braid::v1::Optimizer* message) {
  std::visit(OptimizerWriter{message}, spec);
}

ScheduleSpec ReadSchedule(const braid::v1::Schedule& message) {
  ScheduleSpec spec;
  spec.warmup.steps = message.warmup().steps();
  BRAID_READ_OPTIONAL(message.warmup(), start_factor, spec.warmup);
  switch (message.kind_case()) {
    case braid::v1::Schedule::kStep: {
      StepScheduleSpec step;
      step.step_size = message.step().step_size();
      BRAID_READ_OPTIONAL(message.step(), gamma, step);
      spec.kind = step;
      break;
    }
    case braid::v1::Schedule::kMultiStep: {
      MultiStepScheduleSpec steps;
      steps.milestones.assign(message.multi_step().milestones().begin(),
                              message.multi_step().milestones().end());
      BRAID_READ_OPTIONAL(message.multi_step(), gamma, steps);
      spec.kind = steps;
      break;
    }
    case braid::v1::Schedule::kExponential:
      spec.kind = ExponentialScheduleSpec{message.exponential().gamma()};
      break;
    case braid::v1::Schedule::kCosine:
      spec.kind = CosineScheduleSpec{message.cosine().t_max(), message.cosine().eta_min()};
      break;
    case braid::v1::Schedule::kOneCycle:
      spec.kind = ReadOneCycle(message.one_cycle());
      break;
    case braid::v1::Schedule::kPlateau:
      spec.kind = ReadPlateau(message.plateau());
      break;
    case braid::v1::Schedule::KIND_NOT_SET:
      break;
  }
  return spec;
}

void WriteSchedule(const ScheduleSpec& spec, braid::v1::Schedule* message) {
  if (spec.warmup.steps > 0) {
    message->mutable_warmup()->set_steps(spec.warmup.steps);
    message->mutable_warmup()->set_start_factor(spec.warmup.start_factor);
  }
  std::visit(ScheduleWriter{message}, spec.kind);
}

GradScalerSpec ReadGradScaler(const braid::v1::GradScaler& message) {
  GradScalerSpec spec;
  BRAID_READ_OPTIONAL(message, init_scale, spec);
  BRAID_READ_OPTIONAL(message, growth_factor, spec);
  BRAID_READ_OPTIONAL(message, backoff_factor, spec);
  BRAID_READ_OPTIONAL(message, growth_interval, spec);
  return spec;
}

void WriteGradScaler(const GradScalerSpec& spec, braid::v1::GradScaler* message) {
  message->set_init_scale(spec.init_scale);
  message->set_growth_factor(spec.growth_factor);
  message->set_backoff_factor(spec.backoff_factor);
  message->set_growth_interval(spec.growth_interval);
}

#undef BRAID_READ_OPTIONAL

}  // namespace braid
