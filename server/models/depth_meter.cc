#include "server/models/depth_meter.h"

#include <algorithm>
#include <optional>

#include "torch/csrc/jit/frontend/lexer.h"

namespace braid {

std::optional<size_t> DepthMeter::Take(int kind) {
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

// What follows a block may go on with its statement.
void DepthMeter::EndBlock(int kind) {
  if (after_block_ && kind == torch::jit::TK_ELSE) {
    --levels_.back().blocks;  // its block is beside the one before it
  } else if (after_block_ && kind != torch::jit::TK_ELIF) {
    levels_.back().EndStatement();
  }
  after_block_ = false;
}

void DepthMeter::Open(bool block) {
  around_ += levels_.back().blocks + levels_.back().tokens;
  levels_.push_back({.block = block});
}

bool DepthMeter::Close(bool block) {
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

}  // namespace braid
