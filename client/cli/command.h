// What the subcommands of `braid` have in common.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "nlohmann/json.hpp"

namespace braid::cli {

// Exit codes; after a signal 128 + its number.
inline constexpr int kOk = 0;
// The server or the model said no, or output could not be written.
inline constexpr int kFailed = 1;
inline constexpr int kBadUsage = 2;

struct GlobalOptions {
  std::string server = "127.0.0.1:8001";
  bool json = false;
  // Seconds for each call; 0: no limit.
  double timeout = 0;
  client::Security security;
};

struct Command {
  CLI::App* app;
  // Runs it, once `app` is parsed; returns the exit code.
  std::function<int(const GlobalOptions&)> run;
};

Command AddModels(CLI::App& braid);
Command AddDevices(CLI::App& braid);
Command AddInfer(CLI::App& braid);
Command AddTrain(CLI::App& braid);
Command AddTrainers(CLI::App& braid);
Command AddEvaluate(CLI::App& braid);
Command AddCheckpoints(CLI::App& braid);
Command AddDownload(CLI::App& braid);
Command AddRollback(CLI::App& braid);
Command AddExport(CLI::App& braid);

// Print "braid: " and the message, on one line of stderr, and return the exit code.
int Fail(const absl::Status& status);
int BadUsage(const absl::Status& status);

absl::StatusOr<std::unique_ptr<client::Client>> Connect(const GlobalOptions& global);

// On one line of stdout.
void PrintJson(const nlohmann::ordered_json& json);

}  // namespace braid::cli
