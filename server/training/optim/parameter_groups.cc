#include "server/training/optim/parameter_groups.h"

#include <re2/re2.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/training/name_pattern.h"
#include "server/training/number_checks.h"

namespace braid {
namespace {

absl::Status CheckNumber(const std::string& field, std::optional<double> value, bool frozen) {
  if (!value) {
    return absl::OkStatus();
  }
  if (frozen) {
    return InvalidField(field, "given for frozen parameters (a frozen group takes only a pattern)");
  }
  return CheckNotNegative(field, *value);
}

absl::Status CheckNumbers(const ParameterGroupSpec& spec, const std::string& where) {
  BRAID_RETURN_IF_ERROR(CheckNumber(where + "lr", spec.lr, spec.frozen));
  BRAID_RETURN_IF_ERROR(CheckNumber(where + "weight_decay", spec.weight_decay, spec.frozen));
  return CheckNumber(where + "momentum", spec.momentum, spec.frozen);
}

}  // namespace

ParameterGroups::ParameterGroups(std::vector<ParameterGroupSpec> specs,
                                 std::vector<size_t> group_of)
    : specs_(std::move(specs)), group_of_(std::move(group_of)) {
  for (size_t g = 0; g < size(); ++g) {
    const bool frozen = g > 0 && specs_[g - 1].frozen;
    if (!frozen && std::find(group_of_.begin(), group_of_.end(), g) != group_of_.end()) {
      updated_.push_back(g);
    }
  }
}

absl::StatusOr<ParameterGroups> ParameterGroups::Create(std::vector<ParameterGroupSpec> specs,
                                                        const std::vector<std::string>& names) {
  std::vector<size_t> group_of(names.size(), 0);
  for (size_t g = 0; g < specs.size(); ++g) {
    const std::string where = absl::StrCat("parameter_groups[", g, "].");
    const std::string& pattern = specs[g].pattern;
    BRAID_ASSIGN_OR_RETURN(const auto expression, CompileNamePattern(pattern, where + "pattern"));
    BRAID_RETURN_IF_ERROR(CheckNumbers(specs[g], where));
    bool found = false;
    for (size_t p = 0; p < names.size(); ++p) {
      if (RE2::PartialMatch(names[p], *expression)) {
        found = true;
        group_of[p] = group_of[p] == 0 ? g + 1 : group_of[p];
      }
    }
    if (!found) {
      return InvalidField(where + "pattern",
                          absl::StrCat("\"", Excerpt(pattern), "\" matches no parameter name"));
    }
  }
  ParameterGroups groups(std::move(specs), std::move(group_of));
  if (names.empty() || !groups.updated().empty()) {
    return groups;
  }
  return absl::FailedPreconditionError("every parameter is frozen; there is nothing to train");
}

ParameterGroups ParameterGroups::Range(size_t first, size_t count) const {
  const auto begin = group_of_.begin() + static_cast<std::ptrdiff_t>(first);
  return {specs_, std::vector<size_t>(begin, begin + static_cast<std::ptrdiff_t>(count))};
}

}  // namespace braid
