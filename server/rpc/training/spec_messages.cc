#include "server/rpc/training/spec_messages.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/training/loss/loss_spec.h"

namespace braid {
namespace {

// Copies an optional field if it is set.
#define BRAID_READ_OPTIONAL(message, field, spec) \
  if ((message).has_##field()) {                  \
    (spec).field = (message).field();             \
  }

// Sets an optional field if the specification has it.
#define BRAID_WRITE_OPTIONAL(message, field, spec) \
  if ((spec).field) {                              \
    (message)->set_##field(*(spec).field);         \
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
  // 0 means unset in the protocol.
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

// Applies the defaults documented in training.proto. INVALID_ARGUMENT if no optimizer is set.
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
  return InvalidField("optimizer", "missing (expected sgd, adam, adamw, rmsprop or adagrad)");
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

// Converts an enumerator. The protocol counts from 1 in the engine's order; 0 gives `unspecified`.
template <typename Ours, typename Theirs>
absl::StatusOr<Ours> ReadEnum(Theirs value, std::initializer_list<Ours> known, Ours unspecified,
                              absl::string_view field) {
  const int number = static_cast<int>(value);
  if (number == 0) {
    return unspecified;
  }
  if (number < 0 || static_cast<size_t>(number) > known.size()) {
    return InvalidField(
        field, absl::StrCat("unknown value ", number, " (expected 0 to ", known.size(), ")"));
  }
  return *(known.begin() + number - 1);
}

// Converts an enumerator back.
template <typename Theirs, typename Ours>
Theirs WriteEnum(Ours value) {
  return static_cast<Theirs>(static_cast<int>(value) + 1);
}

absl::StatusOr<LossSpec> ReadLoss(const braid::v1::Loss& message, const std::string& field) {
  LossSpec spec;
  spec.name = message.name();
  spec.output = message.output();
  spec.outputs.assign(message.outputs().begin(), message.outputs().end());
  spec.target = message.target();
  spec.target_lengths = message.target_lengths();
  spec.input_lengths = message.input_lengths();
  BRAID_ASSIGN_OR_RETURN(
      spec.reduction,
      ReadEnum(message.reduction(), {Reduction::kMean, Reduction::kSum, Reduction::kBatchMean},
               Reduction::kMean, field + ".reduction"));
  spec.weight = message.has_weight() ? message.weight() : 1;
  BRAID_READ_OPTIONAL(message, ignore_index, spec);
  spec.label_smoothing = message.label_smoothing();
  spec.class_weights.assign(message.class_weights().begin(), message.class_weights().end());
  spec.pos_weight.assign(message.pos_weight().begin(), message.pos_weight().end());
  spec.pos_weight_shape.assign(message.pos_weight_shape().begin(),
                               message.pos_weight_shape().end());
  BRAID_READ_OPTIONAL(message, beta, spec);
  BRAID_READ_OPTIONAL(message, delta, spec);
  spec.log_target = message.log_target();
  BRAID_READ_OPTIONAL(message, margin, spec);
  BRAID_READ_OPTIONAL(message, p, spec);
  spec.swap = message.swap();
  BRAID_READ_OPTIONAL(message, eps, spec);
  spec.full = message.full();
  BRAID_READ_OPTIONAL(message, log_input, spec);
  BRAID_READ_OPTIONAL(message, gamma, spec);
  BRAID_READ_OPTIONAL(message, alpha, spec);
  BRAID_READ_OPTIONAL(message, smooth, spec);
  spec.blank = message.blank();
  spec.zero_infinity = message.zero_infinity();
  spec.module = message.module();
  return spec;
}

void WriteLoss(const LossSpec& spec, braid::v1::Loss* message) {
  message->set_name(spec.name);
  message->set_output(spec.output);
  message->mutable_outputs()->Add(spec.outputs.begin(), spec.outputs.end());
  message->set_target(spec.target);
  message->set_target_lengths(spec.target_lengths);
  message->set_input_lengths(spec.input_lengths);
  message->set_reduction(WriteEnum<braid::v1::Loss::Reduction>(spec.reduction));
  message->set_weight(spec.weight);
  BRAID_WRITE_OPTIONAL(message, ignore_index, spec);
  message->set_label_smoothing(spec.label_smoothing);
  message->mutable_class_weights()->Add(spec.class_weights.begin(), spec.class_weights.end());
  message->mutable_pos_weight()->Add(spec.pos_weight.begin(), spec.pos_weight.end());
  message->mutable_pos_weight_shape()->Add(spec.pos_weight_shape.begin(),
                                           spec.pos_weight_shape.end());
  BRAID_WRITE_OPTIONAL(message, beta, spec);
  BRAID_WRITE_OPTIONAL(message, delta, spec);
  message->set_log_target(spec.log_target);
  BRAID_WRITE_OPTIONAL(message, margin, spec);
  BRAID_WRITE_OPTIONAL(message, p, spec);
  message->set_swap(spec.swap);
  BRAID_WRITE_OPTIONAL(message, eps, spec);
  message->set_full(spec.full);
  BRAID_WRITE_OPTIONAL(message, log_input, spec);
  BRAID_WRITE_OPTIONAL(message, gamma, spec);
  BRAID_WRITE_OPTIONAL(message, alpha, spec);
  BRAID_WRITE_OPTIONAL(message, smooth, spec);
  message->set_blank(spec.blank);
  message->set_zero_infinity(spec.zero_infinity);
}

#undef BRAID_READ_OPTIONAL
#undef BRAID_WRITE_OPTIONAL

ParameterGroupSpec ReadGroup(const braid::v1::ParameterGroup& message) {
  ParameterGroupSpec spec;
  spec.pattern = message.pattern();
  spec.frozen = message.frozen();
  if (message.has_lr()) {
    spec.lr = message.lr();
  }
  if (message.has_weight_decay()) {
    spec.weight_decay = message.weight_decay();
  }
  if (message.has_momentum()) {
    spec.momentum = message.momentum();
  }
  return spec;
}

void WriteGroup(const ParameterGroupSpec& spec, braid::v1::ParameterGroup* message) {
  message->set_pattern(spec.pattern);
  message->set_frozen(spec.frozen);
  if (spec.lr) {
    message->set_lr(*spec.lr);
  }
  if (spec.weight_decay) {
    message->set_weight_decay(*spec.weight_decay);
  }
  if (spec.momentum) {
    message->set_momentum(*spec.momentum);
  }
}

absl::StatusOr<absl::Duration> ReadSeconds(double seconds, absl::string_view field) {
  if (!(seconds >= 0) || std::isinf(seconds)) {
    return InvalidField(field, absl::StrCat(seconds, " is out of range (expected at least 0)"));
  }
  return absl::Seconds(seconds);
}

absl::Status ReadChoices(const braid::v1::TrainingOptions& message, TrainerSpec* spec) {
  BRAID_ASSIGN_OR_RETURN(spec->loss_mode, ReadEnum(message.loss_mode(),
                                                   {LossMode::kCentral, LossMode::kPerReplica,
                                                    LossMode::kModel, LossMode::kClient},
                                                   LossMode::kCentral, "loss_mode"));
  BRAID_ASSIGN_OR_RETURN(
      spec->precision,
      ReadEnum(message.precision(), {Precision::kModel, Precision::kBfloat16, Precision::kFloat16},
               Precision::kModel, "precision"));
  BRAID_ASSIGN_OR_RETURN(
      spec->non_finite,
      ReadEnum(message.non_finite(), {NonFinitePolicy::kFail, NonFinitePolicy::kSkip},
               NonFinitePolicy::kFail, "non_finite"));
  BRAID_ASSIGN_OR_RETURN(
      spec->sync,
      ReadEnum(message.sync(), {SyncMode::kAuto, SyncMode::kReduceBroadcast, SyncMode::kAllReduce},
               SyncMode::kAuto, "sync"));
  BRAID_ASSIGN_OR_RETURN(spec->journal,
                         ReadEnum(message.journal(), {JournalMode::kOperations, JournalMode::kNone},
                                  JournalMode::kOperations, "journal"));
  spec->journal_history.bytes = message.journal_history().bytes();
  BRAID_ASSIGN_OR_RETURN(spec->journal_history.age, ReadSeconds(message.journal_history().seconds(),
                                                                "journal_history.seconds"));
  BRAID_ASSIGN_OR_RETURN(spec->checkpoints.every, ReadSeconds(message.checkpoints().every_seconds(),
                                                              "checkpoints.every_seconds"));
  BRAID_ASSIGN_OR_RETURN(spec->idle_timeout,
                         ReadSeconds(message.idle_timeout_seconds(), "idle_timeout_seconds"));
  return absl::OkStatus();
}

absl::Status ReadOptions(const braid::v1::TrainingOptions& message, TrainerSpec* spec) {
  BRAID_RETURN_IF_ERROR(ReadChoices(message, spec));
  spec->unweighted_mean = message.unweighted_mean();
  for (const auto& group : message.parameter_groups()) {
    spec->groups.push_back(ReadGroup(group));
  }
  spec->schedule = ReadSchedule(message.schedule());
  const braid::v1::Clipping& clipping = message.clipping();
  if (clipping.has_max_norm()) {
    spec->clipping.max_norm = clipping.max_norm();
  }
  if (clipping.has_norm_type()) {
    spec->clipping.norm_type = clipping.norm_type();
  }
  if (clipping.has_max_value()) {
    spec->clipping.max_value = clipping.max_value();
  }
  if (message.has_grad_scaler() && spec->precision != Precision::kFloat16) {
    return InvalidField("grad_scaler", "requires PRECISION_FLOAT16");
  }
  spec->grad_scaler = ReadGradScaler(message.grad_scaler());
  spec->sync_batch_norm = message.sync_batch_norm();
  spec->eval_modules.assign(message.eval_modules().begin(), message.eval_modules().end());
  spec->seed = message.seed();
  for (const auto& stage : message.stages()) {
    spec->stages.push_back({stage.path(), {stage.devices().begin(), stage.devices().end()}});
  }
  spec->output_device = message.output_device();
  spec->micro_batch = message.micro_batch();
  spec->checkpoints.every_operations = message.checkpoints().every_operations();
  if (message.checkpoints().has_keep()) {
    spec->checkpoints.keep = message.checkpoints().keep();
  }
  return absl::OkStatus();
}

void WriteOptions(const TrainerSpec& spec, braid::v1::TrainingOptions* message) {
  message->set_loss_mode(WriteEnum<braid::v1::LossMode>(spec.loss_mode));
  message->set_unweighted_mean(spec.unweighted_mean);
  for (const ParameterGroupSpec& group : spec.groups) {
    WriteGroup(group, message->add_parameter_groups());
  }
  WriteSchedule(spec.schedule, message->mutable_schedule());
  if (spec.clipping.max_norm) {
    message->mutable_clipping()->set_max_norm(*spec.clipping.max_norm);
    message->mutable_clipping()->set_norm_type(spec.clipping.norm_type);
  }
  if (spec.clipping.max_value) {
    message->mutable_clipping()->set_max_value(*spec.clipping.max_value);
  }
  message->set_precision(WriteEnum<braid::v1::Precision>(spec.precision));
  if (spec.precision == Precision::kFloat16) {
    WriteGradScaler(spec.grad_scaler, message->mutable_grad_scaler());
  }
  message->set_non_finite(WriteEnum<braid::v1::NonFinite>(spec.non_finite));
  message->set_sync(WriteEnum<braid::v1::Sync>(spec.sync));
  message->set_sync_batch_norm(spec.sync_batch_norm);
  message->mutable_eval_modules()->Add(spec.eval_modules.begin(), spec.eval_modules.end());
  message->set_seed(spec.seed);
  for (const StageSpec& stage : spec.stages) {
    auto* out = message->add_stages();
    out->set_path(stage.path);
    out->mutable_devices()->Add(stage.devices.begin(), stage.devices.end());
  }
  message->set_output_device(spec.output_device);
  message->set_micro_batch(spec.micro_batch);
  message->mutable_checkpoints()->set_every_operations(spec.checkpoints.every_operations);
  message->mutable_checkpoints()->set_every_seconds(absl::ToDoubleSeconds(spec.checkpoints.every));
  message->mutable_checkpoints()->set_keep(spec.checkpoints.keep);
  message->set_journal(WriteEnum<braid::v1::Journal>(spec.journal));
  if (spec.journal_history.kept()) {
    message->mutable_journal_history()->set_bytes(spec.journal_history.bytes);
    message->mutable_journal_history()->set_seconds(
        absl::ToDoubleSeconds(spec.journal_history.age));
  }
  message->set_idle_timeout_seconds(absl::ToDoubleSeconds(spec.idle_timeout));
}

// Sets what the server chose for the existing trainer where the request left it out.
void FillInChoices(const TrainerSpec& existing, TrainerSpec* requested) {
  requested->name = existing.name;
  if (requested->base_version == 0) {
    requested->base_version = existing.base_version;
  }
  for (size_t i = 0; i < std::min(requested->losses.size(), existing.losses.size()); ++i) {
    LossSpec& loss = requested->losses[i];
    if (loss.output.empty() && loss.outputs.empty()) {
      loss.output = existing.losses[i].output;
      loss.outputs = existing.losses[i].outputs;
    }
  }
  if (requested->stages.empty()) {
    requested->stages = existing.stages;
  }
  for (size_t i = 0; i < std::min(requested->stages.size(), existing.stages.size()); ++i) {
    if (requested->stages[i].devices.empty()) {
      requested->stages[i].devices = existing.stages[i].devices;
    }
  }
  if (requested->output_device.empty()) {
    requested->output_device = existing.output_device;
  }
}

// Returns the first difference, such as "options.seed: 3 instead of 4"; empty if there is none.
std::string DifferenceOf(const braid::v1::Trainer& existing, const braid::v1::Trainer& requested) {
  std::string lines;  // "modified: PATH: VALUE -> VALUE", "added: PATH: VALUE", "deleted: …"
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&lines);
  differencer.Compare(existing, requested);
  const std::vector<std::string> parts =
      absl::StrSplit(lines.substr(0, lines.find('\n')), absl::MaxSplits(": ", 2));
  if (parts.size() < 3) {
    return "";
  }
  if (parts[0] == "added") {
    return absl::StrCat(parts[1], " is not set, requested ", parts[2]);
  }
  if (parts[0] == "deleted") {
    return absl::StrCat(parts[1], " is ", parts[2], ", not requested");
  }
  return absl::StrCat(parts[1], " is ", absl::StrReplaceAll(parts[2], {{" -> ", ", requested "}}));
}

}  // namespace

absl::Status QualifyField(const absl::Status& status) {
  const std::optional<std::string> field = InvalidFieldOf(status);
  if (!field) {
    return status;
  }
  const std::string first = field->substr(0, field->find_first_of(".["));
  const auto* request = braid::v1::CreateTrainerRequest::descriptor();
  if (request->FindFieldByName(first) != nullptr) {
    return status;
  }
  return PrefixField("options.", status);
}

absl::Status CheckSameArguments(TrainerSpec requested, const TrainerSpec& existing) {
  for (size_t i = 0; i < requested.losses.size(); ++i) {
    BRAID_RETURN_IF_ERROR(
        CheckLossSpec(requested.loss_mode, absl::StrCat("losses[", i, "]"), &requested.losses[i])
            .status());
  }
  FillInChoices(existing, &requested);
  braid::v1::Trainer messages[2];
  WriteSpec(existing, &messages[0]);
  WriteSpec(requested, &messages[1]);
  const std::string difference = DifferenceOf(messages[0], messages[1]);
  return difference.empty()
             ? absl::OkStatus()
             : absl::AlreadyExistsError(absl::StrCat(
                   "name: trainer '", existing.name, "' exists and differs: ", difference,
                   " (expected the arguments that it was created with, or another name)"));
}

absl::StatusOr<TrainerSpec> ReadSpec(const braid::v1::CreateTrainerRequest& request) {
  TrainerSpec spec;
  spec.name = request.name();
  spec.model = request.model();
  spec.base_version = request.version();
  spec.request_id = request.request_id();
  spec.exist_ok = request.exist_ok();
  if (request.version() < 0) {
    return InvalidField(
        "version",
        absl::StrCat(request.version(), " is not a version (expected a number from 1, or 0)"));
  }
  for (int i = 0; i < request.losses_size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(LossSpec loss,
                           ReadLoss(request.losses(i), absl::StrCat("losses[", i, "]")));
    spec.losses.push_back(std::move(loss));
  }
  BRAID_ASSIGN_OR_RETURN(spec.optimizer, ReadOptimizer(request.optimizer()));
  BRAID_RETURN_IF_ERROR(ReadOptions(request.options(), &spec));
  return spec;
}

void WriteSpec(const TrainerSpec& spec, braid::v1::Trainer* message) {
  message->set_name(spec.name);
  message->set_model(spec.model);
  message->set_base_version(spec.base_version);
  for (const LossSpec& loss : spec.losses) {
    WriteLoss(loss, message->add_losses());
  }
  WriteOptimizer(spec.optimizer, message->mutable_optimizer());
  WriteOptions(spec, message->mutable_options());
}

}  // namespace braid
