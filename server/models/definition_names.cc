#include "server/models/definition_names.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/base/text.h"

namespace braid {
namespace {

// So that what is known of a path's parts takes little more memory than the path.
constexpr size_t kMostPath = 1024;

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Files have a '-' in their names at times: a type of theirs is found by the text of its name.
bool IsModule(char c) { return IsWord(c) || c == '-'; }

bool IsName(char c) { return IsModule(c) || c == '.' || c == '/'; }

absl::string_view Prefix(absl::string_view text, bool (*is_part)(char)) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_part);
  return text.substr(0, static_cast<size_t>(end - text.begin()));
}

bool IsNamed(absl::string_view path) {
  const absl::string_view first = Prefix(path, IsWord);
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return path.size() <= kMostPath && parts[0] == first &&
         !absl::ascii_isdigit(static_cast<unsigned char>(path[0])) &&
         std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
           return !part.empty() && Prefix(part, IsModule) == part;
         });
}

}  // namespace

absl::StatusOr<size_t> DefinitionNames::AddModule(absl::string_view path) {
  if (path.empty() || !IsNamed(path)) {
    return absl::FailedPreconditionError("is not named as a module of Python is");
  }
  size_t module = 0;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    const auto [found, added] =
        modules_[module].modules.try_emplace(absl::AsciiStrToLower(part), modules_.size());
    const size_t next = found->second;
    if (added) {
      modules_.emplace_back();
    }
    module = next;
  }
  modules_[module].path = absl::StrReplaceAll(path, {{"/", "."}});
  return module;
}

size_t DefinitionNames::Define(size_t module, absl::string_view name) {
  const auto [found, added] = modules_[module].definitions.try_emplace(name, definitions_.size());
  if (added) {
    definitions_.push_back({.name = std::string(name), .module = module});
  }
  return found->second;
}

bool DefinitionNames::BeginsName(absl::string_view word) const {
  return modules_[0].modules.contains(absl::AsciiStrToLower(word));
}

absl::string_view DefinitionNames::FirstMention(absl::string_view code) {
  return Prefix(code, IsName);
}

absl::StatusOr<std::vector<size_t>> DefinitionNames::Resolve(const Mention& mention) const {
  std::vector<size_t> definitions;
  absl::string_view text = mention.text;
  bool goes_on = mention.goes_on;
  size_t module = 0;
  absl::string_view path;  // of the module, as the mention has it
  while (true) {
    const auto definition = modules_[module].definitions.find(Prefix(text, IsWord));
    if (definition != modules_[module].definitions.end()) {
      // LibTorch makes a file's name of the text of a type: by a name in another case, or with '/'
      // in it, it finds the same file, and compiles what is in it once more.
      if (path != modules_[module].path) {
        return absl::FailedPreconditionError(
            absl::StrCat("names ", Excerpt(FullName(definition->second)), " in another way"));
      }
      definitions.push_back(definition->second);
    }
    const absl::string_view part = Prefix(text, module == 0 ? IsWord : IsModule);
    const auto next = modules_[module].modules.find(absl::AsciiStrToLower(part));
    if (next == modules_[module].modules.end()) {
      // Variables may hold modules, and parentheses be around them.
      if (part.empty() && mention.is_code && (definitions.empty() || goes_on)) {
        return absl::FailedPreconditionError("names a module without what it uses of it");
      }
      return definitions;
    }
    module = next->second;
    text.remove_prefix(part.size());
    path = mention.text.substr(0, mention.text.size() - text.size());
    if (absl::StartsWith(text, ".") || absl::StartsWith(text, "/")) {
      text.remove_prefix(1);
      goes_on = goes_on || text.empty();
    } else {
      text = {};
    }
  }
}

std::string DefinitionNames::FullName(size_t definition) const {
  const Definition& named = definitions_[definition];
  return absl::StrCat(modules_[named.module].path, ".", named.name);
}

}  // namespace braid
