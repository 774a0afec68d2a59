// `braid export`: writes a PyTorch model into a repository. PyTorch's exporter is Python, and so is
// this command: it is run here for `braid` to have all commands, wherever it comes from.
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"

namespace braid::cli {
namespace {

constexpr char kProgram[] =
    "import sys\n"
    "try:\n"
    "    from braid._command import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'braid: export needs the Python package braid-client[export]: {error}')\n"
    "sys.exit(main(['export', *sys.argv[1:]]))\n";

int RunExport(const CLI::App& app) {
  std::vector<std::string> words = {"python3", "-c", kProgram};
  for (const std::string& word : app.remaining()) {
    words.push_back(word);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  return Fail(absl::ErrnoToStatus(errno, "export runs python3, which cannot be started"));
}

}  // namespace

Command AddExport(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand(
      "export", "Export a PyTorch model into a server's repository (needs Python and PyTorch)");
  // Its options are the Python command's, --help too.
  app->prefix_command();
  app->set_help_flag();
  app->fallthrough(false);
  return {app, [app](const GlobalOptions&) { return RunExport(*app); }};
}

}  // namespace braid::cli
