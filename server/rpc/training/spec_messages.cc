#include "server/rpc/training/spec_messages.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/rpc/training/optimizer_messages.h"

namespace braid {
namespace {

// An enumerator of the wire as the engine's; 0, which is unspecified, is `unspecified`.
template <typename Ours, typename Theirs>
absl::StatusOr<Ours> ReadEnum(Theirs value, std::initializer_list<Ours> known, Ours unspecified,
                              absl::string_view field) {
  const int number = static_cast<int>(value);
  if (number == 0) {
    return unspecified;
  }
  if (number < 0 || static_cast<size_t>(number) > known.size()) {
    return InvalidField(field, absl::StrCat(number, " is unknown; expected 0 to ", known.size()));
  }
  return *(known.begin() + number - 1);
}

// And back: the wire counts from 1 in the order of the engine's.
template <typename Theirs, typename Ours>
Theirs WriteEnum(Ours value) {
  return static_cast<Theirs>(static_cast<int>(value) + 1);
}

absl::StatusOr<LossSpec> ReadLoss(const braid::v1::Loss& message, const std::string& field) {
  LossSpec spec;
  spec.name = message.name();
  spec.output = message.output();
  spec.target = message.target();
  BRAID_ASSIGN_OR_RETURN(spec.reduction,
                         ReadEnum(message.reduction(), {Reduction::kMean, Reduction::kSum},
                                  Reduction::kMean, field + ".reduction"));
  spec.weight = message.has_weight() ? message.weight() : 1;
  if (message.has_ignore_index()) {
    spec.ignore_index = message.ignore_index();
  }
  spec.label_smoothing = message.label_smoothing();
  spec.class_weights.assign(message.class_weights().begin(), message.class_weights().end());
  spec.pos_weight.assign(message.pos_weight().begin(), message.pos_weight().end());
  if (message.has_beta()) {
    spec.beta = message.beta();
  }
  if (message.has_delta()) {
    spec.delta = message.delta();
  }
  spec.log_target = message.log_target();
  spec.module = message.module();
  return spec;
}

void WriteLoss(const LossSpec& spec, braid::v1::Loss* message) {
  message->set_name(spec.name);
  message->set_output(spec.output);
  message->set_target(spec.target);
  message->set_reduction(WriteEnum<braid::v1::Loss::Reduction>(spec.reduction));
  message->set_weight(spec.weight);
  if (spec.ignore_index) {
    message->set_ignore_index(*spec.ignore_index);
  }
  message->set_label_smoothing(spec.label_smoothing);
  message->mutable_class_weights()->Add(spec.class_weights.begin(), spec.class_weights.end());
  message->mutable_pos_weight()->Add(spec.pos_weight.begin(), spec.pos_weight.end());
  if (spec.beta) {
    message->set_beta(*spec.beta);
  }
  if (spec.delta) {
    message->set_delta(*spec.delta);
  }
  message->set_log_target(spec.log_target);
}

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
    return InvalidField(field, absl::StrCat(seconds, " is out of range; expected at least 0"));
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
    return InvalidField("grad_scaler", "goes with PRECISION_FLOAT16");
  }
  spec->grad_scaler = ReadGradScaler(message.grad_scaler());
  spec->sync_batch_norm = message.sync_batch_norm();
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
  message->set_idle_timeout_seconds(absl::ToDoubleSeconds(spec.idle_timeout));
}

}  // namespace

absl::StatusOr<TrainerSpec> ReadSpec(const braid::v1::CreateTrainerRequest& request) {
  TrainerSpec spec;
  spec.name = request.name();
  spec.model = request.model();
  spec.base_version = request.version();
  spec.request_id = request.request_id();
  if (request.version() < 0) {
    return InvalidField("version", absl::StrCat(request.version(),
                                                " is no version; expected a number from 1, or 0"));
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
