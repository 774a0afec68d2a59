#include "server/training/step/eval_modules.h"

#include <re2/re2.h>

#include <cstddef>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/base/abbreviate_names.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/training/name_pattern.h"

namespace braid {
namespace {

// Returns true if `matched` contains the module at `path` or one that contains it.
bool IsInside(const std::set<std::string>& matched, const std::string& path) {
  for (size_t end = path.size(); end != std::string::npos; end = path.rfind('.', end - 1)) {
    if (matched.contains(path.substr(0, end))) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindEvalModules(const std::vector<std::string>& patterns,
                                                         const std::vector<std::string>& modules) {
  std::set<std::string> matched;
  for (size_t p = 0; p < patterns.size(); ++p) {
    const std::string field = absl::StrCat("eval_modules[", p, "]");
    BRAID_ASSIGN_OR_RETURN(const auto expression, CompileNamePattern(patterns[p], field));
    bool found = false;
    for (const std::string& module : modules) {
      if (RE2::PartialMatch(module, *expression)) {
        found = true;
        matched.insert(module);
      }
    }
    if (!found) {
      return InvalidField(
          field, absl::StrCat("\"", Excerpt(patterns[p]), "\" matches no submodule; the model has ",
                              AbbreviateNames(modules)));
    }
  }
  std::vector<std::string> inside;
  for (const std::string& module : modules) {
    if (IsInside(matched, module)) {
      inside.push_back(module);
    }
  }
  return inside;
}

}  // namespace braid
