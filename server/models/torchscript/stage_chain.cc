#include "server/models/torchscript/stage_chain.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "torch/csrc/jit/ir/constants.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {
namespace {

using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;

// IDs of the tensors in a value of the graph, which is a tensor or a container.
using Flow = std::vector<int64_t>;
// ID of constants and of the module's own tensors.
constexpr int64_t kUntracked = -1;

// Follows tensors through forward() and through the submodules that contain stages.
class ChainCheck {
 public:
  explicit ChainCheck(const std::vector<std::string>& paths) : paths_(paths) {}

  absl::Status Run(const Module& module) {
    std::vector<Flow> inputs;
    for (size_t i = 1; i < module.get_method("forward").graph()->inputs().size(); ++i) {
      inputs.push_back({next_tensor_});
      current_.push_back(next_tensor_++);
    }
    Flow returned;
    BRAID_RETURN_IF_ERROR(Follow(module, "", inputs, &returned));
    if (stage_ < paths_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model does not call '", paths_[stage_],
                       stage_ == 0 ? "'" : absl::StrCat("' after '", paths_[stage_ - 1], "'")));
    }
    if (returned != current_) {
      return absl::InvalidArgumentError(absl::StrCat("the model does not return the results of '",
                                                     paths_.back(), "', in that order"));
    }
    return absl::OkStatus();
  }

 private:
  // inputs: one for each argument. Sets `*returned` to the tensors that forward() returns.
  absl::Status Follow(const Module& module, const std::string& path,
                      const std::vector<Flow>& inputs, Flow* returned) {
    const auto graph = module.get_method("forward").graph();
    std::map<const Value*, Flow> flows;
    // The module and its submodules, with their paths.
    std::map<const Value*, std::pair<std::string, Module>> modules;
    modules.emplace(graph->inputs()[0], std::make_pair(path, module));
    for (size_t i = 1; i < graph->inputs().size(); ++i) {
      flows[graph->inputs()[i]] = inputs[i - 1];
    }
    for (const Node* node : graph->nodes()) {
      switch (node->kind()) {
        case c10::prim::Constant:
          break;
        case c10::prim::GetAttr:
          if (const auto owner = modules.find(node->input()); owner != modules.end()) {
            const std::string& name = node->s(c10::attr::name);
            const auto& [owner_path, owner_module] = owner->second;
            const c10::IValue value = owner_module.attr(name);
            if (value.isModule()) {
              modules.emplace(
                  node->output(),
                  std::make_pair(owner_path.empty() ? name : absl::StrCat(owner_path, ".", name),
                                 value.toModule()));
            }
          }
          break;
        case c10::prim::CallMethod: {
          const auto callee = modules.find(node->input(0));
          if (callee == modules.end() || node->s(c10::attr::name) != "forward") {
            return Unsupported(*node, path);
          }
          BRAID_RETURN_IF_ERROR(Call(*node, path, callee->second, &flows));
          break;
        }
        case c10::prim::TupleConstruct:
        case c10::prim::ListConstruct:
        case c10::prim::DictConstruct: {
          flows[node->output()] = Join(FlowsOf(node->inputs(), 0, flows));
          break;
        }
        case c10::prim::TupleUnpack:
        case c10::prim::ListUnpack: {
          const Flow all = flows[node->input()];
          if (all.size() != node->outputs().size()) {
            return Unsupported(*node, path);
          }
          for (size_t i = 0; i < all.size(); ++i) {
            flows[node->outputs()[i]] = {all[i]};
          }
          break;
        }
        default:
          return Unsupported(*node, path);
      }
    }
    *returned = Join(FlowsOf(graph->outputs(), 0, flows));
    return absl::OkStatus();
  }

  absl::Status Call(const Node& node, const std::string& caller,
                    const std::pair<std::string, Module>& callee,
                    std::map<const Value*, Flow>* flows) {
    const auto& [path, module] = callee;
    if (stage_ < paths_.size() && path == paths_[stage_]) {
      const std::vector<const Value*> given = ExplicitArguments(module, node);
      if (Join(FlowsOf(given, 0, *flows)) != current_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the model does not pass '", path, "' the ",
            stage_ == 0 ? "model's inputs" : absl::StrCat("results of '", paths_[stage_ - 1], "'"),
            ", in that order"));
      }
      ++stage_;
      current_.clear();
      const auto tuple = node.output()->type()->cast<c10::TupleType>();
      for (size_t i = 0; i < (tuple ? tuple->elements().size() : 1); ++i) {
        current_.push_back(next_tensor_++);
      }
      (*flows)[node.output()] = current_;
      return absl::OkStatus();
    }
    for (const std::string& stage : paths_) {
      if (absl::StartsWith(stage, absl::StrCat(path, "."))) {
        Flow returned;
        BRAID_RETURN_IF_ERROR(Follow(module, path, FlowsOf(node.inputs(), 1, *flows), &returned));
        (*flows)[node.output()] = returned;
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the model calls '", path, "' ",
        stage_ < paths_.size() ? absl::StrCat("where '", paths_[stage_], "' is expected")
                               : absl::StrCat("after '", paths_.back(), "'"),
        caller.empty() ? "" : absl::StrCat(" (in '", caller, "')")));
  }

  // Returns the arguments of a call, without default values. The graph lists default values, and a
  // stage that runs alone has them, too.
  static std::vector<const Value*> ExplicitArguments(const Module& module, const Node& call) {
    const auto& declared = module.get_method("forward").function().getSchema().arguments();
    std::vector<const Value*> given;
    for (size_t i = 1; i < call.inputs().size(); ++i) {
      const std::optional<c10::IValue> constant = torch::jit::toIValue(call.input(i));
      const std::optional<c10::IValue>& default_value = declared[i].default_value();
      if (!constant || !default_value || constant->isTensor() || *constant != *default_value) {
        given.push_back(call.input(i));
      }
    }
    return given;
  }

  // Returns the tensors of each value, starting at `first`. Values that are not inputs or results
  // of stages are kUntracked.
  template <typename Values>
  static std::vector<Flow> FlowsOf(const Values& values, size_t first,
                                   const std::map<const Value*, Flow>& flows) {
    std::vector<Flow> each;
    for (size_t i = first; i < values.size(); ++i) {
      const auto found = flows.find(values[i]);
      each.push_back(found != flows.end() ? found->second : Flow{kUntracked});
    }
    return each;
  }

  static Flow Join(const std::vector<Flow>& each) {
    Flow all;
    for (const Flow& flow : each) {
      all.insert(all.end(), flow.begin(), flow.end());
    }
    return all;
  }

  static absl::Status Unsupported(const Node& node, const std::string& path) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the forward method of ", path.empty() ? "the model" : absl::StrCat("'", path, "'"),
        " must only call its stages, but contains ", node.kind().toQualString(),
        " (move it into a stage)"));
  }

  const std::vector<std::string>& paths_;
  size_t stage_ = 0;  // index of the next stage to be called
  Flow current_;      // the tensors that it must be given
  int64_t next_tensor_ = 0;
};

}  // namespace

absl::Status CheckChain(const Module& module, const std::vector<std::string>& paths) {
  if (paths.size() == 1 && paths.front().empty()) {
    return absl::OkStatus();
  }
  return ChainCheck(paths).Run(module);
}

}  // namespace braid
