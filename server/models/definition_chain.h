// How deep LibTorch calls itself for the functions and classes of a TorchScript archive, before it
// loads them: it compiles what it meets in the middle of what it compiles, so that each definition
// adds to those that name it.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/models/definition_names.h"
#include "server/models/heaviest_path.h"

namespace braid {

// Levels, as of kMostSourceDepth, of each definition in the chain. LibTorch takes 2,800 on 8 MiB of
// stack if all are lists, and needs up to 512 more for a file that it parses on the way.
inline constexpr size_t kMostChainDepth = 1024;

// Takes all files of code in an archive; then Check tells.
class DefinitionChain {
 public:
  // The files, such as code/__torch__/torch/nn.py, before any of them is read. FAILED_PRECONDITION
  // that says what is wrong with its name, if something is.
  absl::Status AddFile(const std::string& record);
  // What is in such a file. FAILED_PRECONDITION that says why if CheckSourceDepth refuses it.
  absl::Status Read(const std::string& record, std::string source);
  // FAILED_PRECONDITION that names the first of them if definitions that each name the next are
  // too deep together, or the one that hides what it names.
  absl::Status Check();

 private:
  class Reader;

  // A definition has two: the first is a function, or what a class has, the second its methods,
  // which are compiled later.
  struct Part {
    size_t depth = 0;
    // Those that are called may each call the next, and count together; of the others the deepest.
    std::vector<std::pair<std::string, size_t>> methods = {};
    std::vector<DefinitionNames::Mention> mentions = {};
  };

  size_t Define(size_t module, absl::string_view name);
  size_t DepthOf(const Part& part) const;
  absl::Status Link(size_t part, GraphNode* node) const;

  DefinitionNames names_;
  absl::flat_hash_map<std::string, size_t> modules_;  // by record
  std::vector<Part> parts_;
  absl::flat_hash_set<std::string> attributes_;  // whatever stands after a dot, or in a string
  std::deque<std::string> texts_;                // what mentions refer to
};

}  // namespace braid
