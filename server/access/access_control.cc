#include "server/access/access_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr char kTokens[] = "--auth_tokens";
constexpr char kCertificates[] = "--auth_certificates";

std::vector<ReloadedFile> FilesOf(const AccessControl::Paths& paths) {
  std::vector<ReloadedFile> files;
  if (!paths.tokens.empty()) {
    files.push_back({kTokens, paths.tokens, /*secret=*/true});
  }
  if (!paths.certificates.empty()) {
    files.push_back({kCertificates, paths.certificates});
  }
  return files;
}

absl::Status WithFlag(const char* flag, const absl::Status& status) {
  return status.ok() ? status
                     : absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

void WarnOfEmptyFile(const char* flag, const std::string& path) {
  Log(LogModule::kServer)
      .warn("{}: '{}' contains no identities (all clients are rejected)", flag, path);
}

}  // namespace

AccessControl::AccessControl(const Paths& paths)
    : paths_(paths), files_(FilesOf(paths), [this](const ReloadedFiles::Contents& contents) {
        return Apply(contents);
      }) {}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Create(const Paths& paths) {
  std::unique_ptr<AccessControl> access(new AccessControl(paths));
  BRAID_RETURN_IF_ERROR(access->files_.Load());
  return access;
}

absl::Status AccessControl::Apply(const ReloadedFiles::Contents& contents) {
  auto table = std::make_shared<IdentityTable>();
  if (takes_tokens()) {
    BRAID_RETURN_IF_ERROR(WithFlag(kTokens, table->AddTokens(paths_.tokens, contents.front())));
  }
  if (takes_certificates()) {
    BRAID_RETURN_IF_ERROR(
        WithFlag(kCertificates, table->AddCertificates(paths_.certificates, contents.back())));
  }
  if (takes_tokens() && table->tokens() == 0) {
    WarnOfEmptyFile(kTokens, paths_.tokens);
  }
  if (takes_certificates() && table->certificates() == 0) {
    WarnOfEmptyFile(kCertificates, paths_.certificates);
  }
  const absl::MutexLock lock(&mu_);
  table_ = std::move(table);
  ++generation_;
  return absl::OkStatus();
}

std::shared_ptr<const Identity> AccessControl::Identify(const Credentials& credentials) const {
  std::shared_ptr<const IdentityTable> table;
  {
    const absl::MutexLock lock(&mu_);
    table = table_;
  }
  if (credentials.token) {
    return table->FindToken(*credentials.token);
  }
  for (const std::string& name : credentials.names) {
    if (auto identity = table->FindCertificate(name); identity != nullptr) {
      return identity;
    }
  }
  return nullptr;
}

}  // namespace braid
