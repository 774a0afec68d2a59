// `braid train`: trains a model of the server through TrainingService, a step at a time.
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
#include "client/cli/train_options.h"

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

int64_t StepsPerEpoch(const TrainOptions& options, int64_t rows) {
  return options.drop_last ? rows / options.batch_size
                           : (rows + options.batch_size - 1) / options.batch_size;
}

void AnnounceSplit(const v1::OperationStatus& status, ProgressReporter& progress) {
  std::vector<std::string> chunks;
  nlohmann::json rows = nlohmann::json::array();
  for (const v1::Chunk& chunk : status.chunks()) {
    chunks.push_back(absl::StrCat(chunk.device(), "=", chunk.rows()));
    rows.push_back({{"device", chunk.device()}, {"rows", chunk.rows()}});
  }
  progress.Message(absl::StrCat("split ", absl::StrJoin(chunks, ",")),
                   {{"event", "split"}, {"chunks", rows}});
}

// OK also when a signal asked to stop.
absl::Status Train(const TrainOptions& options, const Dataset& dataset, client::Trainer& trainer,
                   ProgressReporter& progress) {
  const int64_t steps = StepsPerEpoch(options, dataset.rows());
  const auto batch_size = static_cast<size_t>(options.batch_size);
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const std::vector<int64_t> order =
        EpochOrder(dataset.rows(), options.shuffle, options.seed, epoch);
    for (int64_t step = 0; step < steps; ++step) {
      const auto indices =
          absl::MakeConstSpan(order).subspan(static_cast<size_t>(step) * batch_size, batch_size);
      Batch batch = dataset.Gather(indices);
      const bool report_split = options.split && epoch == 0 && step == 0;
      absl::StatusOr<client::LossResult> result =
          trainer.Step(std::move(batch.inputs), std::move(batch.targets),
                       client::StepOptions{.report_split = report_split});
      if (!result.ok()) return result.status();
      if (report_split) AnnounceSplit(result->status, progress);
      progress.Step(result->loss, static_cast<int64_t>(indices.size()), absl::Now());
      if (!std::cout) return absl::DataLossError("cannot write to stdout");
      if (stop_signal != 0) return absl::OkStatus();
    }
  }
  return absl::OkStatus();
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
                                info.base_version(), " on ", absl::StrJoin(devices, ", ")),
                   {{"event", "trainer"},
                    {"trainer", info.name()},
                    {"model", info.model()},
                    {"base_version", info.base_version()},
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

// Trains, publishes and leaves the server as `options` say. Returns the exit code.
int RunTrainer(const TrainOptions& options, bool json, const Dataset& dataset,
               client::Trainer trainer) {
  const absl::Time start = absl::Now();
  ProgressReporter progress(std::cout, ProgressStyle(json), options.epochs,
                            StepsPerEpoch(options, dataset.rows()), TerminalWidth(), start);
  Announce(trainer.info(), progress);
  absl::Status status = Train(options, dataset, trainer, progress);
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
  if (options.keep_trainer) return code;
  // Where the server is out of reach, asking it again would only take longer to say so.
  absl::Status deleted = absl::IsUnavailable(status) ? status : trainer.Delete();
  if (deleted.ok()) return code;
  std::cerr << "braid: the trainer " << trainer.info().name() << " may be left on the server"
            << std::endl;
  return code == kOk ? Fail(deleted) : code;
}

int RunTrain(const TrainOptions& options, const GlobalOptions& global) {
  absl::StatusOr<std::vector<NamedFile>> inputs = ParseNamedFiles(options.inputs);
  if (!inputs.ok()) return BadUsage(inputs.status());
  absl::StatusOr<NamedFile> target = ParseNamedFile(options.target);
  if (!target.ok()) return BadUsage(target.status());
  absl::StatusOr<v1::CreateTrainerRequest> request = TrainerRequest(options, target->name);
  if (!request.ok()) return BadUsage(request.status());
  absl::StatusOr<Dataset> dataset = Dataset::Open(*inputs, *target);
  if (!dataset.ok()) return BadUsage(dataset.status());
  if (StepsPerEpoch(options, dataset->rows()) == 0) {
    return BadUsage(absl::InvalidArgumentError(
        absl::StrCat("--drop-last leaves nothing: a batch is ", options.batch_size,
                     " rows, the data has ", dataset->rows())));
  }

  auto client = Connect(global);
  if (!client.ok()) return Fail(client.status());
  CatchSignals();
  absl::StatusOr<client::Trainer> trainer = (*client)->CreateTrainer(*std::move(request));
  if (!trainer.ok()) return Fail(trainer.status());
  return RunTrainer(options, global.json, *dataset, *std::move(trainer));
}

}  // namespace

Command AddTrain(CLI::App& braid) {
  CLI::App* app =
      braid.add_subcommand("train", "Train a model on .npy files, over all devices of the server");
  auto options = std::make_shared<TrainOptions>();
  AddTrainOptions(*app, *options);
  app->footer(
      "Prints a progress bar on a terminal, otherwise plain lines; with --json an object for each\n"
      "step. The trainer is deleted at the end, and on Ctrl-C, unless --keep-trainer.\n"
      "Example: braid train fashion --input x=train_x.npy --target target=train_y.npy --epochs 3\n"
      "         --batch-size 256 --lr 0.1 --momentum 0.9 --publish");
  return {app, [options](const GlobalOptions& global) { return RunTrain(*options, global); }};
}

}  // namespace braid::cli
