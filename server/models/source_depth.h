// How deep a record of a TorchScript archive nests, before LibTorch, whose parser, compiler and
// destructors recurse as deep, reads it: a stack that overflows would end the process.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace torch::jit {
struct Token;
}  // namespace torch::jit

namespace braid {

// Depth is counted in tokens: of a statement and of those around it, what stands between two commas
// of one bracket, for each bracket that is open. LibTorch takes 2,750 on 8 MiB of stack.
inline constexpr size_t kMostSourceDepth = 512;
// LibTorch's lexer recurses over lines without code: it takes 15,000.
inline constexpr size_t kMostEmptyLines = 1024;

// FAILED_PRECONDITION that says what is too deep, and in what line, if `source`, a file of code in
// an archive, is. What is no code is LibTorch's to refuse.
absl::Status CheckSourceDepth(absl::string_view source);
// The same, and gives each token on, until there is none that LibTorch's parser would take.
absl::Status CheckSourceDepth(absl::string_view source,
                              absl::FunctionRef<void(const torch::jit::Token&)> take);

}  // namespace braid
