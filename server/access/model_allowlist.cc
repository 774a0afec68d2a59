#include "server/access/model_allowlist.h"

#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {

absl::StatusOr<std::map<std::string, Sha256Digest>> ParseSha256Lines(const std::string& file,
                                                                     absl::string_view text) {
  std::map<std::string, Sha256Digest> hashes;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty() || line.front() == '#') {
      continue;
    }
    const absl::string_view hex = line.substr(0, line.find(' '));
    const std::optional<Sha256Digest> digest = ParseSha256(hex);
    absl::string_view path = line.substr(hex.size());
    // sha256sum prints a space for text mode and '*' for binary mode; the hashes are equal.
    if (!digest || path.size() < 3 || (path[1] != ' ' && path[1] != '*')) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": '", absl::CHexEscape(Excerpt(line)),
                       "' is not a hash and a path (expected lines as printed by sha256sum)"));
    }
    path.remove_prefix(2);
    absl::ConsumePrefix(&path, "./");
    if (!hashes.emplace(std::string(path), *digest).second) {
      return absl::InvalidArgumentError(absl::StrCat(file, ":", number, ": duplicate path '",
                                                     absl::CHexEscape(Excerpt(path)),
                                                     "' (expected one hash per path)"));
    }
  }
  return hashes;
}

ModelAllowlist::ModelAllowlist(const std::string& path, std::string repository)
    : path_(path),
      repository_(std::move(repository)),
      files_({{"--model_allowlist", path}},
             [this](const ReloadedFiles::Contents& contents) { return Apply(contents); }) {}

absl::StatusOr<std::unique_ptr<ModelAllowlist>> ModelAllowlist::Create(
    const std::string& path, const std::string& repository) {
  const bool slash = absl::EndsWith(repository, "/");
  std::unique_ptr<ModelAllowlist> list(
      new ModelAllowlist(path, slash ? repository : absl::StrCat(repository, "/")));
  BRAID_RETURN_IF_ERROR(list->files_.Load());
  return list;
}

absl::Status ModelAllowlist::Apply(const ReloadedFiles::Contents& contents) {
  absl::StatusOr<std::map<std::string, Sha256Digest>> hashes =
      ParseSha256Lines(path_, contents.front());
  if (!hashes.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model_allowlist: ", hashes.status().message()));
  }
  const absl::MutexLock lock(&mu_);
  hashes_ = *std::move(hashes);
  return absl::OkStatus();
}

absl::Status ModelAllowlist::Check(const std::string& path) const {
  const std::string relative(absl::StripPrefix(path, repository_));
  std::optional<Sha256Digest> listed;
  {
    const absl::MutexLock lock(&mu_);
    if (const auto found = hashes_.find(relative); found != hashes_.end()) {
      listed = found->second;
    }
  }
  if (!listed) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", relative, "' is not in ", path_, " (--model_allowlist)"));
  }
  BRAID_ASSIGN_OR_RETURN(const Sha256Digest digest, Sha256OfFile(path));
  if (!SameDigest(digest, *listed)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", relative, "' has the SHA-256 ", Sha256Hex(digest),
                     ", which differs from the one in ", path_, " (--model_allowlist)"));
  }
  return absl::OkStatus();
}

}  // namespace braid
