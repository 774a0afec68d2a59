// The `braid` command.
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/credentials.h"

namespace braid::cli {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 success; 1 the server or the model refused, or output could not be written;\n"
    "2 bad usage; 130 interrupted.\n"
    "A token for the server is in --token_file, or in the variable BRAID_TOKEN.";

int Parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version come as errors with code 0.
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return -1;
    }
    BadUsage(absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)")));
    return kBadUsage;
  }
  return kOk;
}

int Main(int argc, char** argv) {
  CLI::App app("Talks to a braid-server: inference, training, models and devices.", "braid");
  app.footer(kFooter);
  app.set_version_flag("--version", "braid " BRAID_VERSION);
  app.require_subcommand(1);
  // --server and the like may also come behind the subcommand.
  app.fallthrough();
  GlobalOptions global;
  app.add_option("--server", global.server, "The server's address")
      ->envname("BRAID_SERVER")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_flag("--json", global.json, "Print JSON, one object a line");
  app.add_option("--timeout", global.timeout, "Limit for each call; 0: none")
      ->type_name("SECONDS")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->capture_default_str();
  CredentialFiles credentials;
  AddCredentialFlags(app, &credentials);
  const Command commands[] = {
      AddInfer(app),    AddTrain(app),    AddTrainers(app), AddEvaluate(app), AddCheckpoints(app),
      AddDownload(app), AddRollback(app), AddModels(app),   AddDevices(app),  AddExport(app)};

  if (const int code = Parse(app, argc, argv); code != kOk) return code < 0 ? kOk : code;
  absl::StatusOr<client::Security> security = ReadCredentials(credentials);
  if (!security.ok()) return BadUsage(security.status());
  global.security = *std::move(security);
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const int code = command.run(global);
    if (code == kOk && !std::cout.flush())
      return Fail(absl::DataLossError("cannot write to stdout"));
    return code;
  }
  return kBadUsage;
}

}  // namespace
}  // namespace braid::cli

// What CLI11 throws outside Parse is a mistake in the declarations above: any run shows it.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return braid::cli::Main(argc, argv); }
