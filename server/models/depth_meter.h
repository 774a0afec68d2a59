// How deep LibTorch's parser and compiler call themselves for tokens of TorchScript.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace braid {

// Never less than the depth of the tree that LibTorch's parser makes, nor than how deep it calls
// itself on the way.
class DepthMeter {
 public:
  // The depth so far; none if LibTorch's parser gets no further than here.
  std::optional<size_t> Take(int kind);

 private:
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

  void EndBlock(int kind);
  void Open(bool block);
  bool Close(bool block);

  std::vector<Level> levels_ = {{.block = true}};
  size_t around_ = 0;  // what the levels but the last add up to
  bool after_block_ = false;
};

}  // namespace braid
