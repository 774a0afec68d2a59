#include "server/models/source_depth.h"

#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/models/depth_meter.h"
#include "torch/csrc/jit/frontend/lexer.h"

namespace braid {
namespace {

absl::Status TooDeep(absl::string_view what, size_t line) {
  return absl::FailedPreconditionError(absl::StrCat(what, " in line ", line));
}

absl::Status CheckEmptyLines(absl::string_view source) {
  size_t empty = 0;
  size_t line = 0;
  for (absl::string_view text : absl::StrSplit(source, '\n')) {
    ++line;
    text = absl::StripLeadingAsciiWhitespace(text);
    empty = text.empty() || text[0] == '#' || text[0] == '\\' ? empty + 1 : 0;
    if (empty > kMostEmptyLines) {
      return TooDeep(absl::StrCat("has more than ", kMostEmptyLines, " lines without code"), line);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSourceDepth(absl::string_view source) {
  return CheckSourceDepth(source, [](const torch::jit::Token&) {});
}

absl::Status CheckSourceDepth(absl::string_view source,
                              absl::FunctionRef<void(const torch::jit::Token&)> take) {
  BRAID_RETURN_IF_ERROR(CheckEmptyLines(source));
  DepthMeter meter;
  try {
    const auto text = std::make_shared<torch::jit::Source>(
        std::string_view(source.data(), source.size()), std::nullopt, 0, nullptr,
        torch::jit::Source::DONT_COPY);
    torch::jit::Lexer lexer(text);
    while (lexer.cur().kind != torch::jit::TK_EOF) {
      const torch::jit::Token token = lexer.next();
      const std::optional<size_t> depth = meter.Take(token.kind);
      if (!depth) {
        break;
      }
      if (*depth > kMostSourceDepth) {
        return TooDeep(absl::StrCat("nests more than ", kMostSourceDepth, " levels"),
                       text->lineno_for_offset(token.range.start()) + 1);
      }
      take(token);
    }
  } catch (const std::exception&) {
    // No token: LibTorch, which comes as far, says what it is.
  }
  return absl::OkStatus();
}

}  // namespace braid
