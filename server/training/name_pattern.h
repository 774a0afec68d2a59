// Patterns that select parameters or submodules by name.
#pragma once

#include <re2/re2.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace braid {

// Compiles a client's regular expression. INVALID_ARGUMENT naming `field` if it is empty, invalid
// or too large.
absl::StatusOr<std::unique_ptr<RE2>> CompileNamePattern(const std::string& pattern,
                                                        const std::string& field);

}  // namespace braid
