// `braid evaluate`: loss and metrics of a trainer over .npy files.
#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/dataset.h"
#include "client/cli/evaluation.h"

namespace braid::cli {
namespace {

struct Arguments {
  std::string trainer;
  std::vector<std::string> inputs;
  std::vector<std::string> targets;
  int64_t batch_size = 256;
  std::vector<std::string> metrics;
  int64_t k = 0;
};

int RunEvaluate(const Arguments& arguments, const GlobalOptions& global) {
  absl::StatusOr<std::vector<NamedFile>> inputs = ParseNamedFiles(arguments.inputs);
  if (!inputs.ok()) return BadUsage(inputs.status());
  absl::StatusOr<std::vector<NamedFile>> targets = ParseNamedFiles(arguments.targets);
  if (!targets.ok()) return BadUsage(targets.status());
  absl::StatusOr<Dataset> dataset = Dataset::Open(*inputs, *targets);
  if (!dataset.ok()) return BadUsage(dataset.status());

  auto client = Connect(global);
  if (!client.ok()) return Fail(client.status());
  auto trainer = (*client)->AttachTrainer(arguments.trainer);
  if (!trainer.ok()) return Fail(trainer.status());
  int64_t from = 0;
  auto next = [&]() -> std::optional<client::Batch> {
    if (from == dataset->rows()) return std::nullopt;
    std::vector<int64_t> indices(
        static_cast<size_t>(std::min(arguments.batch_size, dataset->rows() - from)));
    std::iota(indices.begin(), indices.end(), from);
    from += static_cast<int64_t>(indices.size());
    return dataset->Gather(indices);
  };
  absl::StatusOr<v1::EvaluateResponse> result =
      trainer->Evaluate(next, {.metrics = arguments.metrics, .k = arguments.k});
  if (!result.ok()) return Fail(result.status());
  if (global.json) {
    PrintJson(EvaluationJson(*result));
  } else {
    std::cout << FormatEvaluation(*result);
  }
  return kOk;
}

}  // namespace

Command AddEvaluate(CLI::App& braid) {
  CLI::App* app =
      braid.add_subcommand("evaluate", "Measure a trainer's weights, as they are, on .npy files");
  auto arguments = std::make_shared<Arguments>();
  app->add_option("TRAINER", arguments->trainer, "The trainer")->type_name("")->required();
  app->add_option("--input", arguments->inputs, "An input and its file; once for each input")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false)
      ->required();
  app->add_option("--target", arguments->targets, "A target and its file; once for each target")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false);
  app->add_option("--batch-size", arguments->batch_size, "Rows that are sent at a time")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--metric", arguments->metrics,
                  "Beyond the loss: accuracy, top_k, confusion, mse or mae; once for each")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app->add_option("--k", arguments->k, "Of top_k. Default: 5")->type_name("N");
  app->footer(
      "Nothing of the trainer changes. Example:\n"
      "braid evaluate fashion --input x=test_x.npy --target target=test_y.npy --metric accuracy");
  return {app,
          [arguments](const GlobalOptions& global) { return RunEvaluate(*arguments, global); }};
}

}  // namespace braid::cli
