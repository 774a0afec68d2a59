#include "server/models/inference_only/mutated_inputs.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "re2/re2.h"
#include "server/base/status.h"

namespace braid {
namespace {

using Names = std::vector<std::string>;
// Graph inputs that a tensor may share memory with.
using Origins = std::set<std::string>;

// Maximum nesting of graphs, such as branches. No real model is deeper.
constexpr int kMaxDepth = 16;

// Returns the tensors that `argument` names, in order.
absl::StatusOr<Names> TensorsOf(const JsonField& argument) {
  Names names;
  const auto add = [&names](const JsonField& tensor) -> absl::Status {
    if (tensor.Has("name")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField field, tensor.Get("name"));
      BRAID_ASSIGN_OR_RETURN(names.emplace_back(), field.String());
    }
    return absl::OkStatus();
  };
  for (const char* kind : {"as_tensor", "as_tensors"}) {
    if (argument.Has(kind)) {
      BRAID_ASSIGN_OR_RETURN(const JsonField value, argument.Get(kind));
      const absl::StatusOr<std::vector<JsonField>> items = value.Items();
      for (const JsonField& tensor : items.ok() ? *items : std::vector<JsonField>{value}) {
        BRAID_RETURN_IF_ERROR(add(tensor));
      }
    }
  }
  // One or a list of {"as_tensor": {"name"}} and {"as_none"}.
  for (const char* kind : {"as_optional_tensor", "as_optional_tensors"}) {
    if (argument.Has(kind)) {
      BRAID_ASSIGN_OR_RETURN(const JsonField value, argument.Get(kind));
      const absl::StatusOr<std::vector<JsonField>> items = value.Items();
      for (const JsonField& optional : items.ok() ? *items : std::vector<JsonField>{value}) {
        if (optional.Has("as_tensor")) {
          BRAID_ASSIGN_OR_RETURN(const JsonField tensor, optional.Get("as_tensor"));
          BRAID_RETURN_IF_ERROR(add(tensor));
        }
      }
    }
  }
  return names;
}

absl::StatusOr<Names> TensorsOf(const std::vector<JsonField>& arguments) {
  Names names;
  for (const JsonField& argument : arguments) {
    BRAID_ASSIGN_OR_RETURN(const Names found, TensorsOf(argument));
    names.insert(names.end(), found.begin(), found.end());
  }
  return names;
}

absl::StatusOr<std::vector<JsonField>> ItemsOf(const JsonField& object, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, object.Get(name));
  return list.Items();
}

// Use of an argument by an operator, from its schema.
struct Use {
  bool writes = false;
  bool returns = false;  // the argument or a view of it
};

Use UseOf(const c10::AliasInfo& alias) {
  Use use{alias.isWrite(), true};
  for (const c10::AliasInfo& element : alias.containedTypes()) {
    use.writes = use.writes || UseOf(element).writes;
  }
  return use;
}

// Operator that a target such as "torch.ops.aten.add_.Tensor" names, and its use of arguments.
class Operator {
 public:
  explicit Operator(const std::string& target) {
    static const re2::RE2 kTarget(R"(torch\.ops\.(\w+)\.(\w+)\.(\w+))");
    std::string library;
    std::string overload;
    if (!RE2::FullMatch(target, kTarget, &library, &name_, &overload)) {
      return;
    }
    known_ = c10::Dispatcher::singleton().findSchema(
        {absl::StrCat(library, "::", name_), overload == "default" ? "" : overload});
  }

  Use use(const std::string& argument, size_t position) const {
    if (!known_) {
      return {position == 0 && InPlace(), position == 0 && InPlace()};
    }
    if (MayReturnArguments()) {
      return {false, true};
    }
    for (const c10::Argument& declared : known_->schema().arguments()) {
      if (declared.name() == argument && declared.alias_info() != nullptr) {
        return UseOf(*declared.alias_info());
      }
    }
    return {};
  }

  // True if it returns its argument only if the argument already has the result's datatype.
  bool converts() const { return name_ == "to" || name_ == "type_as"; }

 private:
  bool InPlace() const {
    return name_.size() > 1 && name_.back() == '_' && name_[name_.size() - 2] != '_';
  }
  // True for operators that may return an argument although their schema does not declare it.
  bool MayReturnArguments() const {
    static const auto* const kNames = new std::set<std::string>(
        {"alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "dropout",
         "einsum", "feature_alpha_dropout", "feature_dropout", "meshgrid", "type_as"});
    return kNames->contains(name_);
  }

  std::string name_;
  std::optional<c10::OperatorHandle> known_;
};

// Tracks which graph inputs each tensor of a graph, and of its nested graphs, may alias.
class AliasTracker {
 public:
  AliasTracker(const std::set<std::string>& given, std::set<std::string>* mutated)
      : given_(given), mutated_(mutated) {}

  // Returns the origins of the graph's outputs. origins: of the tensors among its inputs.
  absl::StatusOr<std::vector<Origins>> Follow(const JsonField& graph,
                                              const std::vector<Origins>& origins, int depth) {
    if (depth > kMaxDepth) {
      return graph.Error(
          absl::StrCat("graphs are nested too deep (expected at most ", kMaxDepth, " levels)"));
    }
    std::map<std::string, Origins> known;
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs, ItemsOf(graph, "inputs"));
    BRAID_ASSIGN_OR_RETURN(const Names taken, TensorsOf(inputs));
    for (size_t t = 0; t < taken.size() && t < origins.size(); ++t) {
      known[taken[t]] = origins[t];
    }
    BRAID_ASSIGN_OR_RETURN(const JsonField types, graph.Get("tensor_values"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> nodes, ItemsOf(graph, "nodes"));
    for (const JsonField& node : nodes) {
      BRAID_RETURN_IF_ERROR(AddNode(node, types, depth, &known));
    }
    std::vector<Origins> results;
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs, ItemsOf(graph, "outputs"));
    BRAID_ASSIGN_OR_RETURN(const Names names, TensorsOf(outputs));
    for (const std::string& name : names) {
      results.push_back(known[name]);
    }
    return results;
  }

 private:
  absl::Status AddNode(const JsonField& node, const JsonField& types, int depth,
                       std::map<std::string, Origins>* known) {
    BRAID_ASSIGN_OR_RETURN(const JsonField field, node.Get("target"));
    BRAID_ASSIGN_OR_RETURN(const std::string target, field.String());
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs, ItemsOf(node, "inputs"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs, ItemsOf(node, "outputs"));
    BRAID_ASSIGN_OR_RETURN(const Names results, TensorsOf(outputs));
    const Operator called(target);
    std::vector<JsonField> graphs;
    std::vector<Origins> passed;  // origins of the tensors
    for (size_t i = 0; i < inputs.size(); ++i) {
      BRAID_ASSIGN_OR_RETURN(const JsonField argument, inputs[i].Get("arg"));
      if (argument.Has("as_graph")) {
        BRAID_ASSIGN_OR_RETURN(const JsonField named, argument.Get("as_graph"));
        BRAID_ASSIGN_OR_RETURN(graphs.emplace_back(named), named.Get("graph"));
        continue;
      }
      std::string name;
      if (inputs[i].Has("name")) {
        BRAID_ASSIGN_OR_RETURN(const JsonField text, inputs[i].Get("name"));
        BRAID_ASSIGN_OR_RETURN(name, text.String());
      }
      const Use use = called.use(name, i);
      BRAID_ASSIGN_OR_RETURN(const Names tensors, TensorsOf(argument));
      for (const std::string& tensor : tensors) {
        const Origins origins = (*known)[tensor];
        passed.push_back(origins);
        if (use.writes) {
          BRAID_RETURN_IF_ERROR(Write(node, target, origins));
        }
        for (const std::string& result : use.returns ? results : Names{}) {
          if (!called.converts() || SameType(types, tensor, result)) {
            (*known)[result].insert(origins.begin(), origins.end());
          }
        }
      }
    }
    for (const JsonField& graph : graphs) {
      BRAID_ASSIGN_OR_RETURN(const std::vector<Origins> found, Follow(graph, passed, depth + 1));
      for (size_t r = 0; r < results.size() && r < found.size(); ++r) {
        (*known)[results[r]].insert(found[r].begin(), found[r].end());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Write(const JsonField& node, const std::string& target, const Origins& origins) {
    for (const std::string& origin : origins) {
      if (!given_.contains(origin)) {
        return node.Error(absl::StrCat("the program changes its buffers or parameters (", target,
                                       " writes to '", origin, "'): export it in evaluation mode"));
      }
      mutated_->insert(origin);
    }
    return absl::OkStatus();
  }

  static bool SameType(const JsonField& types, const std::string& one, const std::string& other) {
    const auto type_of = [&types](const std::string& name) -> absl::StatusOr<int64_t> {
      BRAID_ASSIGN_OR_RETURN(const JsonField value, types.Get(name.c_str()));
      BRAID_ASSIGN_OR_RETURN(const JsonField type, value.Get("dtype"));
      return type.Integer();
    };
    const absl::StatusOr<int64_t> mine = type_of(one);
    const absl::StatusOr<int64_t> theirs = type_of(other);
    return !mine.ok() || !theirs.ok() || *mine == *theirs;
  }

  const std::set<std::string>& given_;
  std::set<std::string>* const mutated_;
};

}  // namespace

absl::StatusOr<std::set<std::string>> MutatedInputs(const JsonField& graph,
                                                    const std::set<std::string>& user_inputs) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs, ItemsOf(graph, "inputs"));
  BRAID_ASSIGN_OR_RETURN(const Names names, TensorsOf(inputs));
  std::vector<Origins> origins;
  for (const std::string& name : names) {
    origins.push_back({name});
  }
  std::set<std::string> mutated;
  BRAID_RETURN_IF_ERROR(AliasTracker(user_inputs, &mutated).Follow(graph, origins, 0).status());
  return mutated;
}

}  // namespace braid
