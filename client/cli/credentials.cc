#include "client/cli/credentials.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace braid::cli {
namespace {

constexpr char kTokenVariable[] = "BRAID_TOKEN";

// Empty for an empty path.
absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || bytes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", path, "' cannot be read, or is empty"));
  }
  return bytes;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  // Nobody sets variables meanwhile. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* const variable = path.empty() ? std::getenv(kTokenVariable) : nullptr;
  if (path.empty() && variable == nullptr) return std::string();
  absl::StatusOr<std::string> read =
      variable != nullptr ? std::string(variable) : ReadFile("--token_file", path);
  if (!read.ok()) return read.status();
  std::string token(absl::StripAsciiWhitespace(*read));
  if (token.empty() || !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    // Not what is there: it may be a secret.
    return absl::InvalidArgumentError(
        absl::StrCat(path.empty() ? kTokenVariable : "--token_file",
                     ": holds no token; expected one word of printable characters"));
  }
  return token;
}

}  // namespace

void AddCredentialFlags(CLI::App& app, CredentialFiles* files) {
  app.add_flag("--tls", files->tls, "Talk TLS, with the system's authorities unless --ca is there");
  app.add_option("--ca", files->ca, "The authorities of the server, in PEM; with --tls")
      ->envname("BRAID_CA")
      ->type_name("FILE");
  app.add_option("--cert", files->certificate, "The client's certificate, in PEM; with --tls")
      ->type_name("FILE");
  app.add_option("--key", files->key, "Its key, in PEM")->type_name("FILE");
  app.add_option("--token_file", files->token_file,
                 absl::StrCat("Holds the token; default: the variable ", kTokenVariable))
      ->type_name("FILE");
}

absl::StatusOr<client::Security> ReadCredentials(const CredentialFiles& files) {
  client::Security security;
  absl::StatusOr<std::string> token = ReadToken(files.token_file);
  if (!token.ok()) return token.status();
  security.token = *std::move(token);
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError("--cert and --key belong together: expected both, or none");
  }
  if (!files.tls) {
    if (files.certificate.empty()) return security;
    return absl::InvalidArgumentError("--cert is for --tls");
  }
  absl::StatusOr<std::string> ca = ReadFile("--ca", files.ca);
  if (!ca.ok()) return ca.status();
  absl::StatusOr<std::string> certificate = ReadFile("--cert", files.certificate);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key = ReadFile("--key", files.key);
  if (!key.ok()) return key.status();
  security.tls = client::Tls{*std::move(ca), *std::move(certificate), *std::move(key)};
  return security;
}

}  // namespace braid::cli
