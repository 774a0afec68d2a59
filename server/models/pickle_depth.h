// How deep the values in a pickle of a TorchScript archive nest, before LibTorch, which frees them
// and copies modules recursively, reads it: a stack that overflows would end the process.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// A module is two levels: itself and the dict of what it has. LibTorch takes 128,000 of lists and
// tuples, and 2,500 modules.
inline constexpr size_t kMostPickleDepth = 512;

// FAILED_PRECONDITION that says what is too deep, or what it does to values that are not there, or
// that are part of others already, and so could grow where nobody counts. What LibTorch's
// unpickler does not know is its to refuse.
absl::Status CheckPickleDepth(absl::string_view pickle);

}  // namespace braid
