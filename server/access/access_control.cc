#include "server/access/access_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"

namespace braid {
namespace {

std::vector<std::string> PathsOf(const AccessControl::Paths& paths) {
  std::vector<std::string> result;
  for (const std::string& path : {paths.tokens, paths.certificates}) {
    if (!path.empty()) {
      result.push_back(path);
    }
  }
  return result;
}

}  // namespace

AccessControl::AccessControl(const Paths& paths)
    : paths_(paths),
      files_("--auth_tokens, --auth_certificates", PathsOf(paths),
             [this](const ReloadedFiles::Contents& contents) { return Apply(contents); }) {}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Create(const Paths& paths) {
  std::unique_ptr<AccessControl> access(new AccessControl(paths));
  if (const absl::Status status = access->files_.Load(); !status.ok()) {
    const bool both = access->takes_tokens() && access->takes_certificates();
    return absl::Status(status.code(),
                        absl::StrCat(both                     ? "--auth_tokens, --auth_certificates"
                                     : access->takes_tokens() ? "--auth_tokens"
                                                              : "--auth_certificates",
                                     ": ", status.message()));
  }
  return access;
}

absl::Status AccessControl::Apply(const ReloadedFiles::Contents& contents) {
  auto table = std::make_shared<IdentityTable>();
  if (takes_tokens()) {
    BRAID_RETURN_IF_ERROR(table->AddTokens(paths_.tokens, contents.front()));
  }
  if (takes_certificates()) {
    BRAID_RETURN_IF_ERROR(table->AddCertificates(paths_.certificates, contents.back()));
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
