// `braid infer`: one batch through a model, from and to .npy files.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/dataset.h"
#include "client/cli/elements.h"
#include "client/cli/npy.h"
#include "client/cli/split.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

using Json = nlohmann::ordered_json;

// Tensors of more elements are shown by datatype and shape alone.
constexpr int64_t kMaxShown = 100;

struct InferArguments {
  std::string model;
  std::string version;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  bool split = false;
};

std::vector<NamedShape> Shapes(const std::vector<client::Tensor>& tensors) {
  std::vector<NamedShape> shapes;
  shapes.reserve(tensors.size());
  for (const client::Tensor& tensor : tensors) shapes.push_back({tensor.name, tensor.shape});
  return shapes;
}

bool Written(const std::vector<NamedFile>& files, const std::string& output) {
  return std::any_of(files.begin(), files.end(),
                     [&](const NamedFile& file) { return file.name == output; });
}

absl::Status WriteOutputs(const std::vector<NamedFile>& files,
                          const std::vector<client::Tensor>& outputs) {
  for (const NamedFile& file : files) {
    auto output = std::find_if(outputs.begin(), outputs.end(),
                               [&](const auto& tensor) { return tensor.name == file.name; });
    if (output == outputs.end()) {
      return absl::NotFoundError(absl::StrCat(
          "the model has no output \"", file.name, "\"; it has ",
          absl::StrJoin(outputs, ", ", [](std::string* out, const client::Tensor& tensor) {
            absl::StrAppend(out, tensor.name);
          })));
    }
    if (absl::Status status = WriteNpy(file.path, *output); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void PrintText(const client::InferResult& result, const std::vector<NamedShape>& inputs,
               const std::vector<NamedFile>& files) {
  std::cout << Printable(absl::StrCat("model ", result.model, ", version ", result.version))
            << "\n";
  for (const client::Tensor& output : result.outputs) {
    std::cout << Printable(absl::StrCat(output.name, "  ", output.datatype, "  ",
                                        FormatShape(output.shape)))
              << "\n";
    absl::StatusOr<int64_t> count = client::ElementCount(output.shape);
    if (count.ok() && *count <= kMaxShown && !Written(files, output.name)) {
      std::cout << FormatValues(output) << "\n";
    }
  }
  std::cout << FormatSplit(inputs, Shapes(result.outputs), result.split);
}

void PrintResultJson(const client::InferResult& result, const std::vector<NamedFile>& files) {
  Json outputs = Json::array();
  for (const client::Tensor& output : result.outputs) {
    Json json = {{"name", output.name}, {"datatype", output.datatype}, {"shape", output.shape}};
    if (!Written(files, output.name)) json["data"] = JsonValues(output);
    outputs.push_back(std::move(json));
  }
  Json json = {
      {"model", result.model}, {"version", result.version}, {"outputs", std::move(outputs)}};
  if (!result.split.empty()) {
    json["split"] = Json::array();
    for (const v1::Chunk& chunk : result.split) {
      json["split"].push_back({{"device", chunk.device()}, {"rows", chunk.rows()}});
    }
  }
  PrintJson(json);
}

int RunInfer(const InferArguments& arguments, const GlobalOptions& global) {
  absl::StatusOr<std::vector<NamedFile>> input_files = ParseNamedFiles(arguments.inputs);
  if (!input_files.ok()) return BadUsage(input_files.status());
  absl::StatusOr<std::vector<NamedFile>> output_files = ParseNamedFiles(arguments.outputs);
  if (!output_files.ok()) return BadUsage(output_files.status());
  std::vector<client::Tensor> inputs;
  for (const NamedFile& input : *input_files) {
    absl::StatusOr<NpyFile> file = NpyFile::Open(input.path);
    if (!file.ok()) return BadUsage(file.status());
    inputs.push_back(file->ToTensor(input.name));
  }
  const std::vector<NamedShape> input_shapes = Shapes(inputs);

  auto client = Connect(global);
  if (!client.ok()) return Fail(client.status());
  absl::StatusOr<client::InferResult> result =
      (*client)->Infer(arguments.model, std::move(inputs),
                       {.version = arguments.version, .report_split = arguments.split});
  if (!result.ok()) return Fail(result.status());
  absl::Status status = WriteOutputs(*output_files, result->outputs);
  if (!status.ok()) return Fail(status);
  if (global.json) {
    PrintResultJson(*result, *output_files);
  } else {
    PrintText(*result, input_shapes, *output_files);
  }
  return kOk;
}

}  // namespace

Command AddInfer(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand("infer", "Run a model on a batch that is in .npy files");
  auto arguments = std::make_shared<InferArguments>();
  app->add_option("MODEL", arguments->model, "The model")->type_name("")->required();
  app->add_option("--input", arguments->inputs,
                  "An input and its file; once for each input. Its dtype must be the input's")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false)
      ->required();
  app->add_option("--output", arguments->outputs,
                  "Write this output to a file, BF16 as float32. May come more than once")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false);
  app->add_option("--model-version", arguments->version, "The version. Default: the newest")
      ->type_name("N");
  app->add_flag("--split", arguments->split,
                "Print how the batch was split: each device's rows, its input and output shapes");
  app->footer(
      "Values are printed of outputs that have at most 100; with --json all are, flat.\n"
      "Example: braid infer toy --input x=batch.npy --output output__0=result.npy --split");
  return {app, [arguments](const GlobalOptions& global) { return RunInfer(*arguments, global); }};
}

}  // namespace braid::cli
