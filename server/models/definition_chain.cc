#include "server/models/definition_chain.h"

#include <algorithm>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/depth_meter.h"
#include "server/models/source_depth.h"
#include "torch/csrc/jit/frontend/lexer.h"
#include "torch/csrc/jit/frontend/parse_string_literal.h"

namespace braid {
namespace {

constexpr absl::string_view kFolder = "code/";
constexpr absl::string_view kEnding = ".py";
// So many tokens after a name's first are not counted: LibTorch needs 125 bytes of stack for a dot
// and what follows it, and PyTorch's names are long.
constexpr size_t kNameTokens = 14;

absl::Status In(absl::string_view where, const absl::Status& status) {
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat(where, " ", status.message()));
}

}  // namespace

// Takes the tokens of one file.
class DefinitionChain::Reader {
 public:
  Reader(DefinitionChain* chain, size_t module, absl::string_view source)
      : chain_(chain), module_(module), source_(source) {}
  ~Reader() { EndDefinition(); }

  void Take(const torch::jit::Token& token) {
    TakeStrings(token);
    FollowName(token);
    if (last_kind_ == '.' && token.kind == torch::jit::TK_IDENT) {
      chain_->attributes_.insert(std::string(View(token)));
    }
    if (blocks_ == 0 &&
        (token.kind == torch::jit::TK_DEF || token.kind == torch::jit::TK_CLASS_DEF)) {
      EndDefinition();
      is_begun_ = true;
      is_class_ = token.kind == torch::jit::TK_CLASS_DEF;
    } else if (is_begun_ && !part_ && token.kind == torch::jit::TK_IDENT) {
      part_ = chain_->Define(module_, View(token));
    } else if (part_ && is_class_ && blocks_ == 1 && token.kind == torch::jit::TK_DEF) {
      EndFunction();
      part_ = *part_ | 1;
    } else if (part_ && last_kind_ == torch::jit::TK_DEF && token.kind == torch::jit::TK_IDENT) {
      method_ = std::string(View(token));
    } else if (part_ && last_kind_ != '.' && chain_->names_.BeginsName(View(token))) {
      BeginName(token);
    }
    Measure(token);
    if (token.kind == torch::jit::TK_INDENT) {
      ++blocks_;
    } else if (token.kind == torch::jit::TK_DEDENT && blocks_ > 0 && --blocks_ == 0) {
      EndDefinition();
    }
    last_kind_ = token.kind;
  }

 private:
  static absl::string_view View(const torch::jit::Token& token) {
    return {token.text_view().data(), token.text_view().size()};
  }

  // Strings after each other are one.
  void TakeStrings(const torch::jit::Token& token) {
    if (token.kind == torch::jit::TK_STRINGLITERAL) {
      string_ += torch::jit::parseStringLiteral(token.range, token.text());
      return;
    }
    const absl::string_view first =
        absl::string_view(string_).substr(0, string_.find_first_of("./"));
    if (part_ && !string_.empty() && chain_->names_.BeginsName(first)) {
      chain_->texts_.push_back(string_);
      chain_->parts_[*part_].mentions.push_back({.text = chain_->texts_.back()});
    }
    if (!string_.empty()) {
      chain_->attributes_.insert(std::move(string_));
    }
    string_.clear();
  }

  void BeginName(const torch::jit::Token& token) {
    const absl::string_view name =
        DefinitionNames::FirstMention(source_.substr(token.range.start()));
    chain_->parts_[*part_].mentions.push_back({.text = name, .is_code = true});
    name_end_ = token.range.start() + name.size();
    name_tokens_ = 0;
    after_name_ = true;
  }

  // (__torch__).f and __torch__ .f are __torch__.f too.
  void FollowName(const torch::jit::Token& token) {
    if (!after_name_ || token.range.start() < name_end_) {
      return;
    }
    if (token.kind == '.') {
      chain_->parts_[*part_].mentions.back().goes_on = true;
    }
    after_name_ = token.kind == ')';
  }

  void Measure(const torch::jit::Token& token) {
    const bool in_name =
        token.range.start() < name_end_ && (token.kind == '.' || last_kind_ == '.');
    if (is_begun_ && (!in_name || ++name_tokens_ > kNameTokens)) {
      depth_ = std::max(depth_, meter_.Take(token.kind).value_or(0));
    }
  }

  void EndFunction() {
    if (part_) {
      Part& part = chain_->parts_[*part_];
      if ((*part_ & 1) == 0) {
        part.depth = std::max(part.depth, depth_);
      } else {
        part.methods.emplace_back(method_, depth_);
      }
    }
    depth_ = 0;
    meter_ = DepthMeter();
  }

  void EndDefinition() {
    EndFunction();
    is_begun_ = false;
    after_name_ = false;
    part_.reset();
  }

  DefinitionChain* const chain_;
  const size_t module_;
  const absl::string_view source_;
  bool is_begun_ = false;
  bool is_class_ = false;
  std::optional<size_t> part_;  // once its name was read
  std::string method_;          // its name, if it is one of a class's
  size_t blocks_ = 0;           // that are open
  DepthMeter meter_;            // of the function, the method, or what a class has before methods
  size_t depth_ = 0;            // the deepest of that
  size_t name_end_ = 0;         // where the last mention in code ends
  size_t name_tokens_ = 0;      // that were read of it, but for the first
  bool after_name_ = false;     // nothing was read since it, except ')'
  int last_kind_ = 0;
  std::string string_;  // of the tokens before, if they are strings
};

absl::Status DefinitionChain::AddFile(const std::string& record) {
  const absl::string_view path = absl::string_view(record).substr(
      kFolder.size(), record.size() - kFolder.size() - kEnding.size());
  const absl::StatusOr<size_t> module = names_.AddModule(path);
  if (!module.ok()) {
    return In(Excerpt(record), module.status());
  }
  modules_[record] = *module;
  return absl::OkStatus();
}

absl::Status DefinitionChain::Read(const std::string& record, std::string source) {
  texts_.push_back(std::move(source));
  Reader reader(this, modules_.at(record), texts_.back());
  return In(Excerpt(record),
            CheckSourceDepth(texts_.back(),
                             [&reader](const torch::jit::Token& token) { reader.Take(token); }));
}

absl::Status DefinitionChain::Check() {
  std::vector<GraphNode> graph(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    graph[i].weight = DepthOf(parts_[i]);
    if ((i & 1) == 0) {
      graph[i].next.push_back(i | 1);
    }
    BRAID_RETURN_IF_ERROR(Link(i, &graph[i]));
  }
  const HeaviestPath path = FindHeaviestPath(graph);
  if (path.weight <= kMostChainDepth) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "definitions that name each other, from ", Excerpt(names_.FullName(path.start / 2)),
      " on, nest ", path.weight, " levels together, more than ", kMostChainDepth));
}

size_t DefinitionChain::Define(size_t module, absl::string_view name) {
  const size_t part = 2 * names_.Define(module, name);
  parts_.resize(std::max(parts_.size(), part + 2));
  return part;
}

size_t DefinitionChain::DepthOf(const Part& part) const {
  size_t called = 0;
  size_t other = 0;
  for (const auto& [name, depth] : part.methods) {
    // Operators and properties are called by what stands for them.
    if (absl::StartsWith(name, "__") || attributes_.contains(name)) {
      called += depth;
    } else {
      other = std::max(other, depth);
    }
  }
  return part.depth + called + other;
}

absl::Status DefinitionChain::Link(size_t part, GraphNode* node) const {
  for (const DefinitionNames::Mention& mention : parts_[part].mentions) {
    const absl::StatusOr<std::vector<size_t>> named = names_.Resolve(mention);
    if (!named.ok()) {
      return In(Excerpt(names_.FullName(part / 2)), named.status());
    }
    for (const size_t definition : *named) {
      // What is being compiled is not begun again.
      if (definition != part / 2) {
        node->next.push_back(2 * definition);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
