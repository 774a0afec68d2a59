// `braid train`: trains a model of the server through TrainingService.
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/dataset.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/train_options.h"
#include "client/cli/training_run.h"

namespace braid::cli {
namespace {

// The signal that asked to stop; 0: none did.
std::atomic<int> stop_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

// From here on a first SIGINT or SIGTERM asks to stop after the step; a second one ends the
// program.
void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { stop_signal = signal; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader that went away shows as a failed write, so that the trainer is deleted then too.
  std::signal(SIGPIPE, SIG_IGN);
}

int TerminalWidth() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

ProgressReporter::Style ProgressStyle(bool json) {
  if (json) return ProgressReporter::Style::kJson;
  return isatty(STDOUT_FILENO) != 0 ? ProgressReporter::Style::kBar
                                    : ProgressReporter::Style::kLines;
}

absl::Status Publish(client::Trainer& trainer, ProgressReporter& progress) {
  absl::StatusOr<int64_t> version = trainer.Publish();
  if (!version.ok()) return version.status();
  const std::string& model = trainer.info().model();
  progress.Message(absl::StrCat("published ", model, " version ", *version),
                   {{"event", "published"}, {"model", model}, {"version", *version}});
  return absl::OkStatus();
}

void Announce(const v1::Trainer& info, ProgressReporter& progress) {
  const std::vector<std::string> devices(info.devices().begin(), info.devices().end());
  progress.Message(absl::StrCat("trainer ", info.name(), " from ", info.model(), " version ",
                                info.base_version(), " on ", absl::StrJoin(devices, ", "),
                                info.step() > 0 ? absl::StrCat(", at step ", info.step()) : ""),
                   {{"event", "trainer"},
                    {"trainer", info.name()},
                    {"model", info.model()},
                    {"base_version", info.base_version()},
                    {"step", info.step()},
                    {"devices", devices}});
}

void Summarize(ProgressReporter& progress, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double rate = static_cast<double>(progress.total_samples()) / seconds;
  progress.Message(
      absl::StrFormat(
          "trained %d steps on %d samples in %.1f s, %s samples/s, last epoch's mean loss %s",
          progress.total_steps(), progress.total_samples(), seconds, FormatRate(rate),
          FormatLoss(progress.mean_loss())),
      {{"event", "summary"},
       {"steps", progress.total_steps()},
       {"samples", progress.total_samples()},
       {"seconds", seconds},
       {"samples_per_second", rate},
       {"mean_loss", progress.mean_loss()}});
}

// Leaves the server as `options` say. Returns the exit code, which is `code` if that succeeds.
int LeaveTrainer(const TrainOptions& options, client::Trainer& trainer, const absl::Status& status,
                 int code) {
  if (options.keep_trainer || !options.attach.empty()) return code;
  // Where the server is out of reach, asking it again would only take longer to say so.
  absl::Status deleted = absl::IsUnavailable(status) ? status : trainer.Delete();
  if (deleted.ok()) return code;
  std::cerr << "braid: the trainer " << Printable(trainer.info().name())
            << " may be left on the server" << std::endl;
  return code == kOk ? Fail(deleted) : code;
}

// Trains, publishes and leaves the server as `options` say. Returns the exit code.
int RunTrainer(const TrainOptions& options, const TrainingPlan& plan, bool json,
               const Dataset& dataset, client::Trainer trainer) {
  const absl::Time start = absl::Now();
  ProgressReporter progress(std::cout, ProgressStyle(json), plan.epochs,
                            StepsPerEpoch(plan, dataset.rows()), TerminalWidth(), start);
  const int64_t made = BatchesTaken(trainer.info());
  progress.StartAfter(made);
  Announce(trainer.info(), progress);
  absl::Status status =
      RunSteps(plan, dataset, made, trainer, progress, [] { return stop_signal != 0; });
  progress.Clear();
  const int signal = stop_signal;
  if (status.ok() && signal == 0) {
    Summarize(progress, absl::Now() - start);
    if (options.publish) status = Publish(trainer, progress);
  }
  int code = kOk;
  if (!status.ok()) code = Fail(status);
  if (signal != 0) {
    Fail(
        absl::CancelledError(absl::StrCat("interrupted after ", progress.total_steps(), " steps")));
    code = 128 + signal;
  }
  return LeaveTrainer(options, trainer, status, code);
}

// Creates the trainer, or finds the one to go on with. Prints why, if there is none.
std::optional<client::Trainer> GetTrainer(const TrainOptions& options, client::Client& client,
                                          v1::CreateTrainerRequest request) {
  absl::StatusOr<client::Trainer> trainer = options.attach.empty()
                                                ? client.CreateTrainer(std::move(request))
                                                : client.AttachTrainer(options.attach);
  if (trainer.ok()) return *std::move(trainer);
  Fail(trainer.status());
  return std::nullopt;
}

// Why the trainer cannot be gone on with.
absl::Status CheckAttached(const TrainOptions& options, const v1::Trainer& info, int64_t steps) {
  if (options.attach.empty()) return absl::OkStatus();
  if (!options.model.empty() && options.model != info.model()) {
    return absl::InvalidArgumentError(absl::StrCat("the trainer ", info.name(), " is one of model ",
                                                   info.model(), ", not of ", options.model));
  }
  if (BatchesTaken(info) >= options.epochs * steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nothing is left to do: the trainer ", info.name(), " has taken ", BatchesTaken(info),
        " batches, --epochs ", options.epochs, " are ", options.epochs * steps));
  }
  return absl::OkStatus();
}

absl::StatusOr<Dataset> OpenData(const TrainOptions& options, std::vector<std::string>* targets) {
  absl::StatusOr<std::vector<NamedFile>> input_files = ParseNamedFiles(options.inputs);
  if (!input_files.ok()) return input_files.status();
  absl::StatusOr<std::vector<NamedFile>> target_files = ParseNamedFiles(options.targets);
  if (!target_files.ok()) return target_files.status();
  for (const NamedFile& file : *target_files) targets->push_back(file.name);
  return Dataset::Open(*input_files, *target_files);
}

int RunTrain(const TrainOptions& options, const GlobalOptions& global) {
  if (absl::Status status = CheckAttach(options); !status.ok()) return BadUsage(status);
  std::vector<std::string> targets;
  absl::StatusOr<Dataset> dataset = OpenData(options, &targets);
  if (!dataset.ok()) return BadUsage(dataset.status());
  absl::StatusOr<v1::CreateTrainerRequest> request = v1::CreateTrainerRequest();
  if (options.attach.empty()) request = TrainerRequest(options, targets);
  if (!request.ok()) return BadUsage(request.status());
  TrainingPlan plan = {.epochs = options.epochs,
                       .batch_size = options.batch_size,
                       .drop_last = options.drop_last,
                       .shuffle = options.shuffle,
                       .depth = options.depth,
                       .report_split = options.split};
  const int64_t steps = StepsPerEpoch(plan, dataset->rows());
  if (steps == 0) {
    return BadUsage(absl::InvalidArgumentError(
        absl::StrCat("--drop-last leaves nothing: a batch is ", options.batch_size,
                     " rows, the data has ", dataset->rows())));
  }

  auto client = Connect(global);
  if (!client.ok()) return Fail(client.status());
  CatchSignals();
  std::optional<client::Trainer> trainer = GetTrainer(options, **client, *std::move(request));
  if (!trainer) return kFailed;
  absl::Status status = CheckAttached(options, trainer->info(), steps);
  if (!status.ok()) return BadUsage(status);
  plan.seed = options.seed.value_or(trainer->info().options().seed());
  return RunTrainer(options, plan, global.json, *dataset, *std::move(trainer));
}

}  // namespace

Command AddTrain(CLI::App& braid) {
  CLI::App* app =
      braid.add_subcommand("train", "Train a model on .npy files, over all devices of the server");
  auto options = std::make_shared<TrainOptions>();
  AddTrainOptions(*app, *options);
  app->footer(
      "Prints a progress bar on a terminal, otherwise plain lines; with --json an object for each\n"
      "step. The trainer is deleted at the end, and on Ctrl-C, unless --keep-trainer or --attach.\n"
      "Keys and values are those of training.proto: --loss cross_entropy:label_smoothing=0.1,\n"
      "--optimizer AdamW:lr=0.001,beta2=0.95, --schedule MultiStepLR:milestones=30,60,gamma=0.2.\n"
      "Example: braid train fashion --input x=train_x.npy --target target=train_y.npy --epochs 3\n"
      "         --batch-size 256 --optimizer SGD:lr=0.1,momentum=0.9 --publish");
  return {app, [options](const GlobalOptions& global) { return RunTrain(*options, global); }};
}

}  // namespace braid::cli
