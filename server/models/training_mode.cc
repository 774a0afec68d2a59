#include "server/models/training_mode.h"

#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/status.h"
#include "server/models/torchscript/inlined_forward.h"
#include "server/telemetry/log.h"
#include "torch/csrc/jit/ir/constants.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {
namespace {

// Returns the argument `name` of a node, for example {"as_bool": true}; nullopt if it is omitted.
absl::StatusOr<std::optional<JsonField>> Argument(const JsonField& node, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, node.Get("inputs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs, list.Items());
  for (const JsonField& input : inputs) {
    BRAID_ASSIGN_OR_RETURN(const JsonField field, input.Get("name"));
    if (field.String().value_or("") == name) {
      BRAID_ASSIGN_OR_RETURN(JsonField argument, input.Get("arg"));
      return argument;
    }
  }
  return std::nullopt;
}

absl::StatusOr<bool> IsOn(const JsonField& node, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const std::optional<JsonField> argument, Argument(node, name));
  if (!argument || !argument->Has("as_bool")) {
    return false;
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField value, argument->Get("as_bool"));
  return value.Boolean();
}

void AddTrainingOperators(const torch::jit::Block& block, std::set<std::string>* found) {
  const auto input = [](const torch::jit::Node* node, const char* name) {
    const bool there = node->maybeSchema() != nullptr && node->hasNamedInput(name);
    return there ? torch::jit::toIValue(node->namedInput(name)) : std::nullopt;
  };
  for (const torch::jit::Node* node : block.nodes()) {
    for (const torch::jit::Block* inner : node->blocks()) {
      AddTrainingOperators(*inner, found);
    }
    for (const char* name : {"train", "training"}) {
      const auto value = input(node, name);
      const auto running = input(node, "running_mean");
      // A batch norm without running statistics computes the same in evaluation mode.
      if (value && value->isBool() && value->toBool() && !(running && running->isNone())) {
        found->insert(node->kind().toUnqualString());
      }
    }
  }
}

}  // namespace

std::set<std::string> TrainingOperators(const torch::jit::Module& module) {
  std::set<std::string> found;
  AddTrainingOperators(*InlinedForward(module)->block(), &found);
  return found;
}

void WarnAboutTrainingOperators(absl::string_view path, const std::set<std::string>& operators) {
  if (!operators.empty()) {
    Log(LogModule::kModels)
        .warn("{}: operators stay in training mode: {} (call eval() before the export)",
              std::string(path), absl::StrJoin(operators, ", "));
  }
}

absl::StatusOr<std::set<std::string>> TrainingOperators(const JsonField& graph) {
  std::set<std::string> found;
  BRAID_ASSIGN_OR_RETURN(const JsonField list, graph.Get("nodes"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> nodes, list.Items());
  for (const JsonField& node : nodes) {
    BRAID_ASSIGN_OR_RETURN(const JsonField field, node.Get("target"));
    BRAID_ASSIGN_OR_RETURN(const std::string target, field.String());
    const std::vector<std::string> parts = absl::StrSplit(target, '.');
    if (!absl::StartsWith(target, "torch.ops.aten.") || parts.size() < 5) {
      continue;
    }
    const std::string& name = parts[3];
    if (absl::StrContains(name, "batch_norm")) {
      BRAID_ASSIGN_OR_RETURN(const bool trains, IsOn(node, "training"));
      BRAID_ASSIGN_OR_RETURN(const auto running, Argument(node, "running_mean"));
      // A batch norm without running statistics computes the same in evaluation mode.
      if (trains && running && !running->Has("as_none")) {
        return node.Error(absl::StrCat("the program changes its buffers (", name,
                                       " in training mode): export it in evaluation mode"));
      }
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const bool trains, IsOn(node, "train"));
    BRAID_ASSIGN_OR_RETURN(const bool training, IsOn(node, "training"));
    if (trains || training) {
      found.insert(name);
    }
  }
  return found;
}

}  // namespace braid
