// `braid download`: a trainer's model as a file.
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

struct Arguments {
  std::string trainer;
  std::string file;
  std::string format = "torchscript";
};

const std::map<std::string, v1::DownloadModelRequest::Format> kFormats = {
    {"package", v1::DownloadModelRequest::FORMAT_PACKAGE},
    {"safetensors", v1::DownloadModelRequest::FORMAT_SAFETENSORS},
    {"torchscript", v1::DownloadModelRequest::FORMAT_TORCHSCRIPT},
};

int RunDownload(const Arguments& arguments, const GlobalOptions& global) {
  auto client = Connect(global);
  if (!client.ok()) return Fail(client.status());
  auto trainer = (*client)->AttachTrainer(arguments.trainer);
  if (!trainer.ok()) return Fail(trainer.status());
  absl::StatusOr<int64_t> bytes =
      trainer->DownloadModel(arguments.file, kFormats.at(arguments.format));
  if (!bytes.ok()) return Fail(bytes.status());
  if (global.json) {
    PrintJson({{"file", arguments.file}, {"format", arguments.format}, {"bytes", *bytes}});
  } else {
    std::cout << absl::StrCat("wrote ", arguments.file, ", ", FormatBytes(*bytes)) << "\n";
  }
  return kOk;
}

}  // namespace

Command AddDownload(CLI::App& braid) {
  CLI::App* app =
      braid.add_subcommand("download", "Write a trainer's model, with its weights, to a file");
  auto arguments = std::make_shared<Arguments>();
  app->add_option("TRAINER", arguments->trainer, "The trainer")->type_name("")->required();
  app->add_option("FILE", arguments->file, "The file, which is replaced once all has come")
      ->type_name("")
      ->required();
  app->add_option("--format", arguments->format,
                  "torchscript: for torch.jit.load; safetensors: parameters and buffers alone; "
                  "package: the graphs of an exported pair, without weights")
      ->check(CLI::IsMember(kFormats).description(""))
      ->type_name("{package,safetensors,torchscript}")
      ->capture_default_str();
  return {app,
          [arguments](const GlobalOptions& global) { return RunDownload(*arguments, global); }};
}

}  // namespace braid::cli
