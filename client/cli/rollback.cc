// `braid rollback`: has a model serve an older version again.
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

struct Arguments {
  std::string model;
  int64_t version = 0;
};

int RunRollback(const Arguments& arguments, const GlobalOptions& global) {
  auto client = Connect(global);
  if (!client.ok()) return Fail(client.status());
  absl::StatusOr<int64_t> previous = (*client)->Rollback(arguments.model, arguments.version);
  if (!previous.ok()) return Fail(previous.status());
  if (global.json) {
    PrintJson({{"model", arguments.model},
               {"version", arguments.version},
               {"previous_version", *previous}});
  } else {
    std::cout << Printable(absl::StrCat(arguments.model, " serves version ", arguments.version,
                                        ", before version ", *previous))
              << "\n";
  }
  return kOk;
}

}  // namespace

Command AddRollback(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand("rollback", "Have a model serve an older version again");
  auto arguments = std::make_shared<Arguments>();
  app->add_option("MODEL", arguments->model, "The model")->type_name("")->required();
  app->add_option("VERSION", arguments->version, "The version")->type_name("")->required();
  return {app,
          [arguments](const GlobalOptions& global) { return RunRollback(*arguments, global); }};
}

}  // namespace braid::cli
