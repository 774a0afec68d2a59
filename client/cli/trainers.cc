// `braid trainers`: who is being trained on the server.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Memory(const v1::Trainer& trainer) {
  return absl::StrJoin(
      trainer.memory(), ", ", [](std::string* out, const v1::DeviceMemory& memory) {
        absl::StrAppend(out, memory.device(), " ", FormatBytes(memory.current_bytes()), " (peak ",
                        FormatBytes(memory.peak_bytes()), ")");
      });
}

void PrintTrainers(const std::vector<v1::Trainer>& trainers) {
  std::vector<std::vector<std::string>> rows = {
      {"trainer", "model", "step", "applied", "durable", "skipped", "lr", "memory"}};
  for (const v1::Trainer& trainer : trainers) {
    rows.push_back({trainer.name(), trainer.model(), absl::StrCat(trainer.step()),
                    absl::StrCat(trainer.applied_sequence()),
                    absl::StrCat(trainer.durable_sequence()), absl::StrCat(trainer.skipped()),
                    absl::StrCat(trainer.lr()), Memory(trainer)});
  }
  std::cout << FormatTable(rows);
}

void PrintTrainersJson(const std::vector<v1::Trainer>& trainers) {
  Json list = Json::array();
  for (const v1::Trainer& trainer : trainers) {
    Json memory = Json::array();
    for (const v1::DeviceMemory& device : trainer.memory()) {
      memory.push_back({{"device", device.device()},
                        {"current_bytes", device.current_bytes()},
                        {"peak_bytes", device.peak_bytes()}});
    }
    const std::vector<std::string> devices(trainer.devices().begin(), trainer.devices().end());
    list.push_back({{"trainer", trainer.name()},
                    {"model", trainer.model()},
                    {"base_version", trainer.base_version()},
                    {"step", trainer.step()},
                    {"applied_sequence", trainer.applied_sequence()},
                    {"durable_sequence", trainer.durable_sequence()},
                    {"skipped", trainer.skipped()},
                    {"lr", trainer.lr()},
                    {"devices", devices},
                    {"memory", std::move(memory)}});
  }
  PrintJson({{"trainers", std::move(list)}});
}

}  // namespace

Command AddTrainers(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand(
      "trainers", "List the server's trainers: where each stands, and the memory that it takes");
  return {app, [](const GlobalOptions& global) {
            auto client = Connect(global);
            if (!client.ok()) return Fail(client.status());
            auto trainers = (*client)->Trainers();
            if (!trainers.ok()) return Fail(trainers.status());
            if (global.json) {
              PrintTrainersJson(*trainers);
            } else {
              PrintTrainers(*trainers);
            }
            return kOk;
          }};
}

}  // namespace braid::cli
