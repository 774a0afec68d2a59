#include "server/models/source_depth.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "torch/csrc/jit/frontend/lexer.h"

namespace braid {
namespace {

// A bracket that is open, or a block of statements.
struct Level {
  bool block = false;
  size_t blocks = 0;   // of the statement, so far: `elif` nests in what is before it
  size_t tokens = 0;   // since the last comma
  size_t inside = 0;   // the deepest of what was closed since then
  size_t deepest = 0;  // of all that came before the last comma

  void EndPart() {
    deepest = std::max(deepest, blocks + tokens + inside);
    tokens = 0;
    inside = 0;
  }
  void EndStatement() {
    EndPart();
    blocks = 0;
  }
};

// Never less than the depth of the tree that LibTorch's parser makes, nor than how deep it calls
// itself on the way.
class DepthMeter {
 public:
  // The depth so far; none if LibTorch's parser gets no further than here.
  std::optional<size_t> Take(int kind) {
    EndBlock(kind);
    switch (kind) {
      case '(':
      case '[':
      case '{':
        ++levels_.back().tokens;
        Open(false);
        break;
      case ')':
      case ']':
      case '}':
        if (!Close(false)) {
          return std::nullopt;
        }
        break;
      case torch::jit::TK_INDENT:
        // Its condition is beside the block, not around it.
        levels_.back().EndPart();
        ++levels_.back().blocks;
        Open(true);
        break;
      case torch::jit::TK_DEDENT:
        if (!Close(true)) {
          return std::nullopt;
        }
        levels_.back().EndPart();
        after_block_ = true;
        break;
      case torch::jit::TK_NEWLINE:
        levels_.back().EndStatement();
        break;
      case ',':
        levels_.back().EndPart();
        break;
      default:
        ++levels_.back().tokens;
    }
    const Level& last = levels_.back();
    return std::max(around_ + last.blocks + last.tokens,
                    std::max(last.deepest, last.blocks + last.tokens + last.inside));
  }

 private:
  // What follows a block may go on with its statement.
  void EndBlock(int kind) {
    if (after_block_ && kind == torch::jit::TK_ELSE) {
      --levels_.back().blocks;  // its block is beside the one before it
    } else if (after_block_ && kind != torch::jit::TK_ELIF) {
      levels_.back().EndStatement();
    }
    after_block_ = false;
  }

  void Open(bool block) {
    around_ += levels_.back().blocks + levels_.back().tokens;
    levels_.push_back({.block = block});
  }

  bool Close(bool block) {
    if (levels_.size() == 1 || levels_.back().block != block) {
      return false;
    }
    levels_.back().EndPart();
    const size_t depth = levels_.back().deepest;
    levels_.pop_back();
    Level& last = levels_.back();
    around_ -= last.blocks + last.tokens;
    last.inside = std::max(last.inside, depth);
    return true;
  }

  std::vector<Level> levels_ = {{.block = true}};
  size_t around_ = 0;  // what the levels but the last add up to
  bool after_block_ = false;
};

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
    }
  } catch (const std::exception&) {
    // No token: LibTorch, which comes as far, says what it is.
  }
  return absl::OkStatus();
}

}  // namespace braid
