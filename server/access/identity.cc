#include "server/access/identity.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr Role kRoles[] = {Role::kInfer, Role::kTrain, Role::kAdmin};

std::optional<Role> FindRole(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kRoles), std::end(kRoles),
                                         [&](Role role) { return RoleName(role) == name; });
  return found == std::end(kRoles) ? std::nullopt : std::optional(*found);
}

bool Covers(const Grant& grant, Role role) {
  return grant.role == role || grant.role == Role::kAdmin;
}

bool IsFor(const Grant& grant, absl::string_view model) {
  return grant.model.empty() || grant.model == model;
}

// Quotes a word for an error message. Hides long words: they may be tokens in the wrong place.
std::string QuoteWord(absl::string_view word) {
  constexpr size_t kMaxShown = 12;
  return word.size() <= kMaxShown ? absl::StrCat("'", absl::CHexEscape(word), "'")
                                  : absl::StrCat("a word of ", word.size(), " characters");
}

// Decodes %XX in a model's name; nullopt if malformed.
std::optional<std::string> Unescaped(absl::string_view text) {
  std::string name;
  while (!text.empty()) {
    const size_t plain = std::min(text.find('%'), text.size());
    absl::StrAppend(&name, text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) {
      break;
    }
    const absl::string_view hex = text.substr(1, 2);
    if (hex.size() < 2 || !absl::ascii_isxdigit(static_cast<unsigned char>(hex[0])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(hex[1]))) {
      return std::nullopt;
    }
    name += absl::HexStringToBytes(hex);
    text.remove_prefix(3);
  }
  return name;
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kInfer:
      return "infer";
    case Role::kTrain:
      return "train";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

bool Identity::MayAll(Role role) const {
  return std::any_of(grants.begin(), grants.end(), [&](const Grant& grant) {
    return Covers(grant, role) && grant.model.empty();
  });
}

bool Identity::May(Role role, absl::string_view model) const {
  return std::any_of(grants.begin(), grants.end(), [&](const Grant& grant) {
    return Covers(grant, role) && IsFor(grant, model);
  });
}

bool Identity::MaySome(Role role) const {
  return std::any_of(grants.begin(), grants.end(),
                     [&](const Grant& grant) { return Covers(grant, role); });
}

bool Identity::Sees(absl::string_view model) const {
  return std::any_of(grants.begin(), grants.end(),
                     [&](const Grant& grant) { return IsFor(grant, model); });
}

absl::StatusOr<std::vector<Grant>> ParseGrants(absl::string_view text) {
  std::vector<Grant> grants;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    const std::optional<Role> role = FindRole(split.first);
    if (!role || (split.second.empty() && split.first.size() != part.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          QuoteWord(part),
          " is not a role (expected infer, train or admin, optionally with a model, for "
          "example infer:resnet18; separated by commas)"));
    }
    std::optional<std::string> model = Unescaped(split.second);
    if (!model) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model of the role ", RoleName(*role),
          " contains a % without two hexadecimal digits (expected %20 for a space, %2C "
          "for a comma, %25 for %)"));
    }
    grants.push_back({*role, *std::move(model)});
  }
  return grants;
}

}  // namespace braid
