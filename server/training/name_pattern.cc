#include "server/training/name_pattern.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

// Maximum size of a compiled pattern in bytes, thousands of times what names need.
constexpr int64_t kMaxPatternMemory = int64_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<RE2>> CompileNamePattern(const std::string& pattern,
                                                        const std::string& field) {
  if (pattern.empty()) {
    return InvalidField(field, "is empty (expected a regular expression)");
  }
  RE2::Options options;
  options.set_log_errors(false);  // the client gets them
  options.set_max_mem(kMaxPatternMemory);
  auto expression = std::make_unique<RE2>(pattern, options);
  if (!expression->ok()) {
    return InvalidField(field,
                        absl::StrCat("\"", Excerpt(pattern), "\" is not a regular expression (",
                                     Excerpt(expression->error()), ")"));
  }
  return expression;
}

}  // namespace braid
