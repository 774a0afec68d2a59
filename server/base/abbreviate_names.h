// Shortens lists of names for messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "server/base/text.h"

namespace braid {

// Returns the first names, for example "'conv1', 'bn1', … (62 in all)"; "none" without names.
inline std::string AbbreviateNames(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 5;
  if (names.empty()) {
    return "none";
  }
  const auto first = absl::MakeConstSpan(names).first(std::min(names.size(), kMaxNames));
  const std::string some =
      absl::StrJoin(first, ", ", [](std::string* out, const std::string& name) {
        absl::StrAppend(out, "'", Excerpt(name), "'");
      });
  return names.size() > kMaxNames ? absl::StrCat(some, ", … (", names.size(), " in all)") : some;
}

}  // namespace braid
