// `braid checkpoints`: lists, writes and restores a trainer's.
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string trainer;
  std::string checkpoint;
};

std::string Written(const v1::Checkpoint& checkpoint) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S",
                          absl::FromUnixMicros(static_cast<int64_t>(checkpoint.created() * 1e6)),
                          absl::LocalTimeZone());
}

Json ToJson(const v1::Checkpoint& checkpoint) {
  return {{"checkpoint", checkpoint.name()},
          {"step", checkpoint.step()},
          {"sequence", checkpoint.sequence()},
          {"bytes", checkpoint.bytes()},
          {"created", checkpoint.created()}};
}

int List(client::Trainer& trainer, bool json) {
  auto checkpoints = trainer.ListCheckpoints();
  if (!checkpoints.ok()) return Fail(checkpoints.status());
  std::vector<std::vector<std::string>> rows = {
      {"checkpoint", "step", "sequence", "size", "written"}};
  Json list = Json::array();
  for (const v1::Checkpoint& checkpoint : *checkpoints) {
    rows.push_back({checkpoint.name(), absl::StrCat(checkpoint.step()),
                    absl::StrCat(checkpoint.sequence()), FormatBytes(checkpoint.bytes()),
                    Written(checkpoint)});
    list.push_back(ToJson(checkpoint));
  }
  if (json) {
    PrintJson({{"checkpoints", std::move(list)}});
  } else {
    std::cout << FormatTable(rows);
  }
  return kOk;
}

// `done`: what became of it, as in "saved".
int Report(const absl::StatusOr<v1::Checkpoint>& checkpoint, const char* done, bool json) {
  if (!checkpoint.ok()) return Fail(checkpoint.status());
  if (json) {
    PrintJson(ToJson(*checkpoint));
    return kOk;
  }
  std::cout << Printable(absl::StrCat(done, " ", checkpoint->name(), ": step ", checkpoint->step(),
                                      ", sequence ", checkpoint->sequence(), ", ",
                                      FormatBytes(checkpoint->bytes())))
            << "\n";
  return kOk;
}

// By name alone: a trainer that has expired cannot be attached to.
int Restore(client::Client& client, const Arguments& arguments, bool json) {
  auto restored = client.RestoreTrainer(arguments.trainer, arguments.checkpoint);
  if (!restored.ok()) return Fail(restored.status());
  return Report(std::move(restored->checkpoint), "restored", json);
}

CLI::App* AddPart(CLI::App& app, const char* name, const char* text, Arguments& arguments) {
  CLI::App* part = app.add_subcommand(name, text);
  part->add_option("TRAINER", arguments.trainer, "The trainer")->type_name("")->required();
  return part;
}

}  // namespace

Command AddCheckpoints(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand("checkpoints", "List, save or restore those of a trainer");
  app->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  CLI::App* list = AddPart(*app, "list", "List them, the oldest first", *arguments);
  AddPart(*app, "save", "Write one, and wait until it is durable", *arguments);
  CLI::App* restore =
      AddPart(*app, "restore", "Have the trainer stand where one stands, also one that has expired",
              *arguments);
  restore->add_option("CHECKPOINT", arguments->checkpoint, "Which one. Default: the newest")
      ->type_name("");
  return {app, [=](const GlobalOptions& global) {
            auto client = Connect(global);
            if (!client.ok()) return Fail(client.status());
            if (restore->parsed()) return Restore(**client, *arguments, global.json);
            auto trainer = (*client)->AttachTrainer(arguments->trainer);
            if (!trainer.ok()) return Fail(trainer.status());
            if (list->parsed()) return List(*trainer, global.json);
            return Report(trainer->SaveCheckpoint(), "saved", global.json);
          }};
}

}  // namespace braid::cli
