#include "server/access/identity_table.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr char kTokenLine[] = "expected ROLE[:MODEL][,…] sha256:HEX NAME";
constexpr char kCertificateLine[] = "expected ROLE[:MODEL][,…] IDENTITY";

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(Excerpt(text)), "'");
}

// Removes the first word from `*line` and returns it.
absl::string_view TakeWord(absl::string_view* line) {
  const absl::string_view word = line->substr(0, line->find_first_of(" \t"));
  line->remove_prefix(word.size());
  *line = absl::StripLeadingAsciiWhitespace(*line);
  return word;
}

// Calls `read` for each line that is not blank or a comment. Prefixes its error with file and line.
absl::Status ForEachLine(const std::string& file, absl::string_view text,
                         absl::FunctionRef<absl::Status(absl::string_view)> read) {
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line.front() == '#') {
      continue;
    }
    if (const absl::Status status = read(line); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ":", number, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status IdentityTable::AddTokens(const std::string& file, absl::string_view text) {
  absl::flat_hash_set<std::string> names;
  return ForEachLine(file, text, [&](absl::string_view line) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(std::vector<Grant> grants, ParseGrants(TakeWord(&line)));
    const absl::string_view hash = TakeWord(&line);
    const std::string name(TakeWord(&line));
    if (hash.empty() || name.empty() || !line.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has ", !line.empty() ? "more than" : "fewer than", " three words (", kTokenLine, ")"));
    }
    absl::string_view hex = hash;
    const bool prefixed = absl::ConsumePrefix(&hex, "sha256:");
    const std::optional<Sha256Digest> digest = ParseSha256(hex);
    if (!prefixed || !digest) {
      // Does not quote the word: it may be a token.
      return absl::InvalidArgumentError(absl::StrCat(
          "the second word, of ", hash.size(),
          " bytes, is not the hash of a token (expected sha256: and 64 hexadecimal digits, as "
          "printed by `printf %s TOKEN | sha256sum`)"));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("duplicate name ", Quoted(name), " (expected one line per name)"));
    }
    if (!tokens_.emplace(*digest, std::make_shared<Identity>(Identity{name, std::move(grants)}))
             .second) {
      return absl::InvalidArgumentError(
          absl::StrCat("duplicate token: ", Quoted(name), " and another name use the same token"));
    }
    return absl::OkStatus();
  });
}

absl::Status IdentityTable::AddCertificates(const std::string& file, absl::string_view text) {
  return ForEachLine(file, text, [&](absl::string_view line) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(std::vector<Grant> grants, ParseGrants(TakeWord(&line)));
    if (line.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("missing identity (", kCertificateLine, ")"));
    }
    const std::string name(line);
    if (!certificates_.emplace(name, std::make_shared<Identity>(Identity{name, std::move(grants)}))
             .second) {
      return absl::InvalidArgumentError(
          absl::StrCat("duplicate identity ", Quoted(name), " (expected one line per identity)"));
    }
    return absl::OkStatus();
  });
}

std::shared_ptr<const Identity> IdentityTable::FindToken(const Sha256Digest& token) const {
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? nullptr : found->second;
}

std::shared_ptr<const Identity> IdentityTable::FindCertificate(absl::string_view identity) const {
  const auto found = certificates_.find(identity);
  return found == certificates_.end() ? nullptr : found->second;
}

}  // namespace braid
