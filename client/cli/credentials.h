// The flags and variables that say how `braid` knows the server, and the server it.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/cpp/security.h"

namespace braid::cli {

// As the flags have it: paths of files.
struct CredentialFiles {
  bool tls = false;
  std::string ca;
  std::string certificate;
  std::string key;
  std::string token_file;
};

void AddCredentialFlags(CLI::App& app, CredentialFiles* files);

// Reads the files; the token is in `token_file`, or else in the variable BRAID_TOKEN: never in a
// flag, which everybody on the machine could read. INVALID_ARGUMENT with the flag that is wrong.
absl::StatusOr<client::Security> ReadCredentials(const CredentialFiles& files);

}  // namespace braid::cli
