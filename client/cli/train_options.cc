#include "client/cli/train_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/spec.h"

namespace braid::cli {
namespace {

void AddDataOptions(CLI::App& app, TrainOptions& options) {
  app.add_option("--input", options.inputs,
                 "An input and its file; once for each input. Its dtype must be the input's")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false)
      ->required()
      ->group("Data");
  app.add_option("--target", options.targets, "A target and its file; once for each target")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false)
      ->group("Data");
  app.add_option("--epochs", options.epochs, "How often to go through the data")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("N")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--batch-size", options.batch_size, "Rows of one step, over all devices")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("N")
      ->capture_default_str()
      ->group("Data");
  app.add_flag("--drop-last", options.drop_last, "Leave out an epoch's last, smaller batch")
      ->group("Data");
  app.add_flag("--shuffle,!--no-shuffle", options.shuffle,
               "Go through the rows in a new order each epoch (default), or in the file's")
      ->group("Data");
  app.add_option("--seed", options.seed,
                 "Decides the orders, and dropout and the like in the model. Default: 0")
      ->type_name("N")
      ->group("Data");
}

// Adds options of a trainer's creation.
class CreationOptions {
 public:
  CreationOptions(CLI::App& app, TrainOptions& options) : app_(app), options_(options) {}

  template <typename Value>
  CLI::Option* Add(const char* group, const char* name, Value& value, const char* type,
                   const char* text) {
    CLI::Option* option = app_.add_option(name, value, text)->type_name(type)->group(group);
    options_.creation.push_back(option);
    return option;
  }
  template <typename Value>
  void AddList(const char* group, const char* name, Value& value, const char* type,
               const char* text) {
    Add(group, name, value, type, text)->allow_extra_args(false);
  }
  void AddFlag(const char* group, const char* name, bool& value, const char* text) {
    options_.creation.push_back(app_.add_flag(name, value, text)->group(group));
  }

 private:
  CLI::App& app_;
  TrainOptions& options_;
};

void AddOptimizerOptions(CreationOptions creation, TrainOptions& options) {
  const char* group = "Loss and optimizer";
  creation.AddList(
      group, "--loss", options.losses, "NAME[:KEY=VALUE,…]",
      "A loss over an output: cross_entropy (default), nll, mse, l1, smooth_l1, huber, "
      "bce_with_logits, kl_div, module:module=FILE. Several add up, each times its "
      "weight");
  creation.Add(group, "--loss-mode", options.loss_mode, "{central,per_replica,model}",
               "Where the loss is computed; model: by the model itself, of its targets");
  creation
      .Add(group, "--optimizer", options.optimizer, "NAME[:KEY=VALUE,…]",
           "SGD, Adam, AdamW, RMSprop or Adagrad, with PyTorch's parameters and defaults")
      ->capture_default_str();
  creation.Add(group, "--lr", options.lr, "FLOAT", "The optimizer's learning rate");
  creation.Add(group, "--weight-decay", options.weight_decay, "FLOAT", "Its weight decay");
  creation.Add(group, "--momentum", options.momentum, "FLOAT", "Its momentum");
  creation.AddList(group, "--group", options.groups, "PATTERN:KEY=VALUE,…",
                   "lr, weight_decay, momentum or frozen=true for parameters whose names have the "
                   "pattern");
  creation.Add(group, "--schedule", options.schedule, "NAME:KEY=VALUE,…",
               "StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, OneCycleLR or "
               "ReduceLROnPlateau, counted in steps");
  creation.Add(group, "--warmup", options.warmup, "STEPS",
               "Grow the learning rate from a third over so many steps first");
  creation.Add(group, "--clip-grad-norm", options.clip_grad_norm, "FLOAT",
               "Clip the gradients to this norm");
}

void AddPlacementOptions(CreationOptions creation, TrainOptions& options) {
  const char* group = "How and where it is computed";
  creation.Add(group, "--precision", options.precision, "{model,bfloat16,float16}",
               "Autocast to this datatype");
  creation.AddFlag(group, "--sync-batch-norm", options.sync_batch_norm,
                   "Batch normalization over the whole batch, not each device's rows");
  creation.Add(group, "--micro-batch", options.micro_batch, "ROWS",
               "The most rows that a device works on at once");
  creation.AddList(group, "--stage", options.stages, "PATH=DEVICE,…",
                   "A submodule and its devices, in the model's order; once for each stage. "
                   "Default: the whole model on all");
  creation.Add(group, "--output-device", options.output_device, "DEVICE",
               "Where the loss is computed: any of the server's, or host");
  creation.AddList(group, "--set", options.settings, "KEY=VALUE",
                   "Any other of the training options, as sync=all_reduce, non_finite=skip, "
                   "clipping.max_value=1, checkpoints.keep=5");
}

absl::Status AddLosses(const TrainOptions& options, const std::vector<std::string>& targets,
                       v1::CreateTrainerRequest* request) {
  const bool by_model = request->options().loss_mode() == v1::LOSS_MODE_MODEL;
  std::vector<std::string> specs = options.losses;
  if (specs.empty()) specs.emplace_back(by_model ? "" : "cross_entropy");
  for (const std::string& spec : specs) {
    absl::StatusOr<v1::Loss> loss = ParseLoss(spec);
    if (!loss.ok()) return loss.status();
    if (!by_model && loss->target().empty()) {
      const std::string what = absl::StrCat("--loss ", spec, " needs a ");
      if (targets.empty()) return absl::InvalidArgumentError(what + "--target");
      if (targets.size() > 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, "target=NAME, one of ", absl::StrJoin(targets, ", ")));
      }
      loss->set_target(targets.front());
    }
    *request->add_losses() = *std::move(loss);
  }
  return absl::OkStatus();
}

// --lr and the like, as fields of the optimizer that was chosen.
absl::Status FillOptimizer(const TrainOptions& options, v1::Optimizer* optimizer) {
  absl::StatusOr<v1::Optimizer> parsed = ParseOptimizer(options.optimizer);
  if (!parsed.ok()) return parsed.status();
  *optimizer = *std::move(parsed);
  google::protobuf::Message* chosen = optimizer->GetReflection()->MutableMessage(
      optimizer, optimizer->GetReflection()->GetOneofFieldDescriptor(
                     *optimizer, v1::Optimizer::descriptor()->oneof_decl(0)));
  const std::pair<const char*, std::optional<double>> fields[] = {
      {"lr", options.lr}, {"weight_decay", options.weight_decay}, {"momentum", options.momentum}};
  for (const auto& [field, value] : fields) {
    if (!value) continue;
    absl::Status status = SetFields(absl::StrCat("--optimizer ", options.optimizer),
                                    absl::StrFormat("%s=%.17g", field, *value), chosen);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status FillOptions(const TrainOptions& options, v1::TrainingOptions* out) {
  auto set = [&](const char* what, const char* field, const std::string& value) {
    if (value.empty()) return absl::OkStatus();
    return SetFields(what, absl::StrCat(field, "=", value), out);
  };
  if (auto status = set("--loss-mode", "loss_mode", options.loss_mode); !status.ok()) return status;
  if (auto status = set("--precision", "precision", options.precision); !status.ok()) return status;
  for (const std::string& setting : options.settings) {
    if (auto status = SetFields("--set", setting, out); !status.ok()) return status;
  }
  for (const std::string& spec : options.groups) {
    absl::StatusOr<v1::ParameterGroup> group = ParseGroup(spec);
    if (!group.ok()) return group.status();
    *out->add_parameter_groups() = *std::move(group);
  }
  for (const std::string& spec : options.stages) {
    absl::StatusOr<v1::Stage> stage = ParseStage(spec);
    if (!stage.ok()) return stage.status();
    *out->add_stages() = *std::move(stage);
  }
  if (!options.schedule.empty()) {
    absl::Status status = ParseSchedule(options.schedule, out->mutable_schedule());
    if (!status.ok()) return status;
  }
  if (options.warmup > 0) out->mutable_schedule()->mutable_warmup()->set_steps(options.warmup);
  if (options.clip_grad_norm) out->mutable_clipping()->set_max_norm(*options.clip_grad_norm);
  if (options.sync_batch_norm) out->set_sync_batch_norm(true);
  if (options.micro_batch != 0) out->set_micro_batch(options.micro_batch);
  if (!options.output_device.empty()) out->set_output_device(options.output_device);
  if (options.seed) out->set_seed(*options.seed);
  if (options.checkpoint_every != 0) {
    out->mutable_checkpoints()->set_every_operations(options.checkpoint_every);
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrainOptions(CLI::App& app, TrainOptions& options) {
  app.add_option("MODEL", options.model,
                 "The model whose served weights it starts from; left out with --attach")
      ->type_name("");
  AddDataOptions(app, options);
  const char* group = "Trainer";
  app.add_option("--attach", options.attach,
                 "Go on with this trainer, up to --epochs of the data in all, behind as many "
                 "batches as it has made steps or left out (non_finite=skip): the data's options "
                 "must be those it was trained with. It stays on the server")
      ->type_name("NAME")
      ->group(group);
  CreationOptions creation(app, options);
  AddOptimizerOptions(creation, options);
  AddPlacementOptions(creation, options);
  creation.Add(group, "--trainer", options.trainer, "NAME",
               "The trainer's name. Default: the model's");
  creation.Add(group, "--checkpoint-every", options.checkpoint_every, "STEPS",
               "Have the server write a checkpoint after so many steps; training then survives its "
               "restart");
  app.add_option("--depth", options.depth, "Steps that are on their way at once")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--publish", options.publish, "At the end, serve the weights as the next version")
      ->group(group);
  app.add_flag("--keep-trainer", options.keep_trainer,
               "Leave the trainer on the server, also when interrupted")
      ->group(group);
  app.add_flag("--split", options.split,
               "Print how the first batch was split: each stage's devices, their rows and shapes");
}

absl::Status CheckAttach(const TrainOptions& options) {
  if (options.attach.empty()) {
    if (!options.model.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("train needs a MODEL, or --attach (see --help)");
  }
  for (const CLI::Option* option : options.creation) {
    if (option->count() == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        option->get_name(), " is decided when a trainer is made: it does not go with --attach"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CreateTrainerRequest> TrainerRequest(const TrainOptions& options,
                                                        const std::vector<std::string>& targets) {
  v1::CreateTrainerRequest request;
  request.set_model(options.model);
  request.set_name(options.trainer);
  absl::Status status = FillOptions(options, request.mutable_options());
  if (status.ok()) status = FillOptimizer(options, request.mutable_optimizer());
  if (status.ok()) status = AddLosses(options, targets, &request);
  if (!status.ok()) return status;
  return request;
}

}  // namespace braid::cli
