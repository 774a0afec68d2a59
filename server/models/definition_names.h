// What the functions and classes in a TorchScript archive are called, and what a piece of its code
// may name, as LibTorch finds it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

class DefinitionNames {
 public:
  // The number of the module that the file `path` defines: `torch/nn` of code/torch/nn.py.
  // FAILED_PRECONDITION if no module is named so.
  absl::StatusOr<size_t> AddModule(absl::string_view path);
  // The number, counted from 0, of the function or class `name` in that module; the same for the
  // same.
  size_t Define(size_t module, absl::string_view name);

  // Whether names of definitions begin with `word`. All modules were added.
  bool BeginsName(absl::string_view word) const;
  // What may name definitions, in code or in a string of it.
  struct Mention {
    absl::string_view text;  // begins as names do
    bool is_code = false;
    bool goes_on = false;  // what follows is an attribute, or else of the module that text names
  };
  static absl::string_view FirstMention(absl::string_view code);  // of what code begins with
  // The definitions that LibTorch may find by it: some dots may stand for attributes. All were
  // defined. FAILED_PRECONDITION for what PyTorch does not write, and does not tell which they are.
  absl::StatusOr<std::vector<size_t>> Resolve(const Mention& mention) const;

  std::string FullName(size_t definition) const;

 private:
  // What holds definitions, or other modules, or both: a tree.
  struct Module {
    std::string path = {};  // torch.nn, as its file has it; empty: it has none
    absl::flat_hash_map<std::string, size_t> modules = {};  // by their last parts in lower case
    absl::flat_hash_map<std::string, size_t> definitions = {};
  };
  struct Definition {
    std::string name;
    size_t module = 0;
  };

  std::vector<Module> modules_ = std::vector<Module>(1);  // the first has all others in it
  std::vector<Definition> definitions_;
};

}  // namespace braid
