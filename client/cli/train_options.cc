#include "client/cli/train_options.h"

#include "absl/strings/str_cat.h"

namespace braid::cli {
namespace {

void AddDataOptions(CLI::App& app, TrainOptions& options) {
  app.add_option("--input", options.inputs,
                 "An input and its file; once for each input. Its dtype must be the input's")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false)
      ->required()
      ->group("Data");
  app.add_option("--target", options.target, "The loss's target and its file")
      ->type_name("NAME=FILE.npy")
      ->required()
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
  app.add_option("--seed", options.seed, "Decides the orders")
      ->type_name("N")
      ->capture_default_str()
      ->group("Data");
}

void AddOptimizerOptions(CLI::App& app, TrainOptions& options) {
  const char* group = "Loss and optimizer";
  app.add_option("--loss", options.loss, "Over the model's first output")
      ->check(CLI::IsMember({"cross_entropy", "mse"}).description(""))
      ->type_name("{cross_entropy,mse}")
      ->capture_default_str()
      ->group(group);
  app.add_option("--optimizer", options.optimizer, "With PyTorch's defaults, but for what follows")
      ->transform(CLI::IsMember({"SGD", "AdamW"}, CLI::ignore_case).description(""))
      ->type_name("{SGD,AdamW}")
      ->capture_default_str()
      ->group(group);
  app.add_option("--lr", options.lr, "Learning rate")->group(group);
  app.add_option("--weight-decay", options.weight_decay, "Weight decay")->group(group);
  app.add_option("--momentum", options.momentum, "Momentum (SGD)")->group(group);
  app.add_flag("--nesterov", options.nesterov, "Nesterov momentum (SGD)")->group(group);
  app.add_option("--betas", options.betas, "Decay of the two running averages (AdamW)")
      ->expected(2)
      ->type_name("B1 B2")
      ->group(group);
  app.add_option("--eps", options.eps, "Added to the denominator (AdamW)")->group(group);
}

absl::Status NotOf(const char* option, const char* owner, const std::string& optimizer) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is an option of ", owner, ", not of ", optimizer));
}

absl::Status FillSgd(const TrainOptions& options, v1::Sgd* sgd) {
  if (!options.betas.empty()) return NotOf("--betas", "AdamW", options.optimizer);
  if (options.eps) return NotOf("--eps", "AdamW", options.optimizer);
  if (options.lr) sgd->set_lr(*options.lr);
  sgd->set_momentum(options.momentum.value_or(0));
  sgd->set_weight_decay(options.weight_decay.value_or(0));
  sgd->set_nesterov(options.nesterov);
  return absl::OkStatus();
}

absl::Status FillAdamW(const TrainOptions& options, v1::AdamW* adamw) {
  if (options.momentum) return NotOf("--momentum", "SGD", options.optimizer);
  if (options.nesterov) return NotOf("--nesterov", "SGD", options.optimizer);
  if (options.lr) adamw->set_lr(*options.lr);
  if (options.weight_decay) adamw->set_weight_decay(*options.weight_decay);
  if (options.eps) adamw->set_eps(*options.eps);
  if (options.betas.size() == 2) {
    adamw->set_beta1(options.betas[0]);
    adamw->set_beta2(options.betas[1]);
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrainOptions(CLI::App& app, TrainOptions& options) {
  app.add_option("MODEL", options.model, "The model whose served weights it starts from")
      ->type_name("")
      ->required();
  AddDataOptions(app, options);
  AddOptimizerOptions(app, options);
  app.add_option("--trainer", options.trainer, "The trainer's name. Default: the model's")
      ->type_name("NAME")
      ->group("Trainer");
  app.add_flag("--publish", options.publish, "At the end, serve the weights as the next version")
      ->group("Trainer");
  app.add_flag("--split", options.split, "Print how the first batch was split over the devices");
  app.add_flag("--keep-trainer", options.keep_trainer,
               "Leave the trainer on the server, also when interrupted")
      ->group("Trainer");
}

absl::StatusOr<v1::CreateTrainerRequest> TrainerRequest(const TrainOptions& options,
                                                        const std::string& target) {
  v1::CreateTrainerRequest request;
  request.set_model(options.model);
  request.set_name(options.trainer);
  request.mutable_loss()->set_name(options.loss);
  request.mutable_loss()->set_target(target);
  v1::Optimizer& optimizer = *request.mutable_optimizer();
  absl::Status status = options.optimizer == "SGD" ? FillSgd(options, optimizer.mutable_sgd())
                                                   : FillAdamW(options, optimizer.mutable_adamw());
  if (!status.ok()) return status;
  return request;
}

}  // namespace braid::cli
